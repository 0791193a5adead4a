# The order of what a cell shows: its value or error first, then the figures that IPython shows after the cell.

# %%
%matplotlib inline
import matplotlib.pyplot as plt
from IPython.display import display

values = [1, 4, 9]

# %%
lines = plt.plot(values)
len(lines)

# %%
print("before")
plt.bar(range(3), values)
plt.title(undefined_name)

# %%
plt.figure(figsize=(2, 1))
display("in between")
plt.plot(values[::-1])
plt.show()
plt.figure(figsize=(1, 2))
plt.plot(values)
values

# %%
from IPython import get_ipython

_ = get_ipython().run_cell("plt.plot(values); print('inner')")
display("outer")
fig = plt.figure(figsize=(1, 1))
"last"

# %%
from IPython.utils.capture import capture_output

with capture_output() as kept:
    plt.plot(values)
    plt.show()
plt.plot(values)
[type(one).__name__ for one in kept.outputs], kept.stdout, plt.get_fignums()
