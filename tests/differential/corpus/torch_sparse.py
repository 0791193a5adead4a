# Sparse tensors that change in place, and sparse gradients that add up over cells.

# %%
import torch

table = torch.nn.Embedding(4, 2, sparse=True)
with torch.no_grad():
    table.weight.fill_(1)
optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
graph = torch.eye(3).to_sparse()
values = graph.values()

# %%
graph.values()[0] = 5
values[1] = 3
table(torch.tensor([0, 1])).sum().backward()

# %%
table(torch.tensor([1, 3])).sum().backward()
print(table.weight.grad.to_dense(), values)
graph = graph.mul_(2)

# %%
optimizer.step()
optimizer.zero_grad(set_to_none=False)
graph = graph.add_(torch.ones(3, 3).to_sparse())

# %%
table(torch.tensor([2])).sum().backward()
optimizer.step()

# %%
table.weight.tolist(), graph.to_dense().tolist(), values.tolist(), (graph @ torch.ones(3)).tolist()
