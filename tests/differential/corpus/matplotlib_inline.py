# Figures shown by the cell that makes them, and kept as an object.

# %%
%matplotlib inline
import matplotlib.pyplot as plt

fig, ax = plt.subplots(figsize=(2, 2))
ax.plot([1, 2, 3])
plt.close(fig)

# %%
ax.plot([3, 2, 1])
ax.set_ylabel("y")
fig

# %%
image = ax.imshow([[1, 2], [3, 4]])
bar = fig.colorbar(image)
ax.annotate("here", (0, 0))
None

# %%
image.set_data([[4, 3], [2, 1]])
image.set_cmap("gray")
fig.axes[1] is bar.ax, ax.images[0] is image

# %%
fig
