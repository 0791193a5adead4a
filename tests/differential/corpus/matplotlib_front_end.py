# Figures of `%matplotlib notebook`, which talk with the front-end: they stay open from cell to cell.

# %%
%matplotlib notebook
import matplotlib.pyplot as plt

plt.ioff()

# %%
figure, axes = plt.subplots(figsize=(3, 2))
(line,) = axes.plot([1, 3, 2])
plt.get_fignums()

# %%
axes.set_title("three points")
line.set_ydata([2, 2, 2])
other = plt.figure(figsize=(2, 2))
plt.plot([1, 2])
plt.gcf() is other

# %%
plt.figure(figure.number)
plt.gca().get_title(), plt.gcf() is figure, len(other.axes[0].lines)

# %%
plt.close(other)
plt.get_fignums(), line.get_ydata()
