# Names that are rebound to a view of their old object, to which no other name refers.

# %%
import numpy as np
import torch

y = torch.arange(3.0)
x = torch.arange(24.0).reshape(4, 6)
large = torch.arange(40_000.0)
array = np.arange(40_000.0)

# %%
y = y.detach()
x = x.T
large = large[:50]
array = array[10:][::-1]

# %%
x = x.T.view(2, 12)
y = y.unsqueeze(0)
large = large[:20]
array = array.reshape(-1, 6)
x.shape, y, large.sum(), array[0, 0]

# %%
x = x.permute(1, 0)
y = y.squeeze()
large, y = y, large
x.data, large.data = large.data, x.data
x, y[-3:], large.shape

# %%
large += 1
array = torch.from_numpy(array.copy())
array = array.numpy()
x, large[0], array.sum()
