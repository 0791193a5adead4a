# Mistakes with shapes, devices and programs: a traceback has the student's lines and torch's, and no others.

# %%
import torch

weight = torch.zeros(4, 5)
with open("fails.py", "w") as program:
    program.write("def f(n):\n    return n / 0\n\nf(1)\n")
del program

def forward(batch):
    return batch @ weight

# %%
forward(torch.zeros(2, 3))

# %%
torch.matmul(weight, weight)

# %%
%run fails.py

# %%
try:
    weight.reshape(3, 7)
except RuntimeError as error:
    said = str(error)
said

# %%
torch.nn.Linear(3, 2)(weight)

# %%
weight += 1
forward(torch.ones(1, 4))
