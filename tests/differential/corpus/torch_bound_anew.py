# Cells that rebind names whose old values are bound to their kernel: files, graphs, iterators.

# %%
import torch

with open("a.txt", "w") as f:
    f.write("one two")
with open("a.txt") as f:
    text = f.read()
torch.manual_seed(0)
net = torch.nn.Linear(3, 2)
data = torch.arange(6.0).reshape(2, 3)
loader = iter(torch.utils.data.DataLoader(data))
out = net(data)
steps = (n for n in [1, 2])

# %%
with open("a.txt") as f:
    text = f.read()
for batch in torch.utils.data.DataLoader(data):
    out = net(batch)
    loss = (out**2).sum()
    loss.backward()
print(text, f.closed, out.detach().shape)

# %%
out = net(data)
loss = out.sum()
loss.backward()
loader = iter(torch.utils.data.DataLoader(data))
steps = (n * 10 for n in [1, 2])
next(loader), next(steps), net.weight.grad.shape

# %%
if out is None:
    print(next(steps))
try:
    with open("missing.txt") as f:
        text = f.read()
except OSError as error:
    text = type(error).__name__
text

# %%
del loader, steps
import math as out

with open("a.txt") as f:
    words = f.read().split()
f = None
out.floor(2.5), words, "steps" in dir()
