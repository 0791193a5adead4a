# Arrays that change shape, dtype or size in place. The cells that change a size name what holds the array.

# %%
import numpy as np

a = np.arange(6)
b = np.arange(4.0)
holder = {"a": a, "b": b, "list": [a]}

# %%
b.resize(6, refcheck=False)
holder["b"] is b

# %%
holder["b"][4] = 9
a.shape = (2, 3)
print(a, b, holder["a"] is a, holder["b"] is b)
a.resize((3, 4), refcheck=False)

# %%
a[2] = 5
b.dtype = np.int64
holder["list"][0].sum()

# %%
b.dtype = np.float64
a.sort(axis=0)
c = np.zeros(3)
c.resize(50, refcheck=False)

# %%
a.shape, b, c.size, holder["a"].shape, holder["b"] is b
