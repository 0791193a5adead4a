# %%
import torch
import torch.nn as nn
from torch.nn.utils import prune

torch.manual_seed(0)
layer, seen = nn.Linear(2, 2), []
first = layer.register_forward_hook(lambda *_: seen.append("first"))
layer.register_forward_pre_hook(lambda *_: seen.append("before"))
layer.note = torch.ones(2)
# %%
second = layer.register_forward_hook(lambda *_: seen.append("second"))
third = layer.weight.register_hook(lambda gradient: seen.append("gradient"))
layer(torch.ones(2)).sum().backward()
seen
# %%
first.remove()
del layer.note
layer(torch.ones(2)).sum().backward()
seen, "note" in vars(layer)
# %%
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
gradient = layer.weight.grad
layer.double()
layer.weight.dtype, gradient.dtype, gradient is layer.weight.grad
# %%
optimizer.step()
layer.half()
layer.weight, gradient.dtype, optimizer.param_groups[0]["params"][0] is layer.weight
# %%
prune.l1_unstructured(layer.float(), "weight", 0.5)
torch.set_grad_enabled(False)
layer(torch.ones(2))
# %%
prune.remove(layer, "weight")
layer.bias.data.zero_()
torch.is_grad_enabled(), sorted(vars(layer)), layer(torch.ones(2))
# %%
torch.set_grad_enabled(True)
layer.weight.data.fill_(1)
layer(torch.ones(2)), seen
