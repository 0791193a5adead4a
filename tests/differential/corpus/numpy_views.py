# Views of views, Fortran order, negative strides, rows of one base, broadcast, diagonal.

# %%
import numpy as np

base = np.arange(24.0).reshape(4, 6)
row, column = base[1], base[:, 2]
flipped = base[::-1, ::2]
turned = base.T

# %%
row += 100
turned[0, 0] = -1

# %%
print(base[:2], flipped[0])
column[:] = 7
deeper = flipped[1:, :2]

# %%
deeper *= 2
fortran = np.asfortranarray(base)
wide = np.broadcast_to(row, (3, 6))

# %%
fortran[0] = 0
inner = fortran[1:, 1:]
base.shape, np.shares_memory(base, deeper), np.shares_memory(fortran, base), wide.flags.writeable

# %%
inner[:] = 5
base.sum(), fortran, column.base is base

# %%
del base
row[0] = 1234
turned[0, 1], wide[2, 0], deeper.strides
