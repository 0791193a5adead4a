# Tensors on the GPU: how they are made, moved and indexed, what shares memory, what prints.

# %%
import numpy as np
import torch

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
numbers = np.arange(6.0).reshape(2, 3)
table = torch.from_numpy(numbers).to(device)
ones, same = torch.ones_like(table), table
device, table.shape, table.dtype, table.device

# %%
first_row, last_column = table[0], table[..., -1]
table[:, 1] = 0
print(table, first_row, last_column)
joined = torch.cat([table, ones, table], dim=1)

# %%
product = table @ table.T
elementwise = table * ones
total = elementwise.sum()
total.item(), product, elementwise.mean(dim=0)

# %%
table.add_(5)
home = table.cpu()
array = home.numpy()
home[0, 0] = -1
print(table[0, 0], array[0, 0], numbers[0, 0], same is table)

# %%
drawn = torch.rand(2, 3, device=device)
drawn, torch.randn(2, device="cuda"), torch.rand(2)

# %%
try:
    table + torch.ones(2, 3)
except RuntimeError as error:
    print(str(error).split("!")[0].split(", but")[0])
torch.where(drawn > 0.5, table, ones).argmax(), first_row.data_ptr() == table.data_ptr()
