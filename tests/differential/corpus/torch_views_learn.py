# Views and what they are views of: gradients, refused changes, parts of parameters and of complex numbers.

# %%
import torch

x = torch.zeros(3)
v = x[0]
w = torch.ones((), requires_grad=True)
saved, p = torch.ones(3), torch.ones(3, requires_grad=True)
row = saved[:2]
z = torch.zeros(2, dtype=torch.complex64)
real = z.real

# %%
v.copy_(w * 2)
(x.sum() + w).backward()
w.grad, x, x.requires_grad, v._base is x

# %%
y = (p * saved).sum()
row.mul_(5)
try:
    y.backward()
except RuntimeError as error:
    print(str(error).partition(":")[0])
saved, row._base is saved, p.grad

# %%
with torch.no_grad():
    part = p[1:]
    part.mul_(3)
buffer = torch.zeros(2, 3)
rows = list(buffer)
part._base is p, rows[1]._base is buffer

# %%
try:
    part.mul_(w)
except RuntimeError as error:
    print(str(error).partition(".")[0])
real.copy_(p[:2])
z.abs().sum().backward()
p, p.grad, z.is_leaf, real._base is z

# %%
try:
    rows[0].mul_(w)
except RuntimeError as error:
    print(str(error).partition(".")[0])
del part, rows
buffer[1].copy_(p * 2)
buffer.sum().backward()
p.grad, buffer
