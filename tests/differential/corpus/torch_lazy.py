# Tensors that get their memory late: those of lazy modules, and an empty one.

# %%
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(24, 3)
y = (x.sum(dim=1) > 0).long()
criterion = nn.CrossEntropyLoss()
lazy = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(2))
weight, mean = lazy[0].weight, lazy[1].running_mean
grown = torch.empty(0)
same = [grown]
print(lazy)

# %%
shape = lazy(x).shape
optimizer = torch.optim.Adam(lazy.parameters())
grown.data = torch.ones(5)
print(lazy, type(weight), weight is lazy[0].weight, mean is lazy[1].running_mean)

# %%
criterion(lazy(x), y).backward()
optimizer.step()
grown.add_(1)
print(weight.shape, weight.grad.abs().sum().item(), mean)

# %%
same[0].sum(), same[0] is grown
