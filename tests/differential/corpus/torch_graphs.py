# Looking at tensors of computation graphs: shapes, values, texts, where the last cell computed them.

# %%
import torch

torch.manual_seed(2)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
batch = torch.arange(12.0).reshape(4, 3)
out = net(batch)
out.shape, out.requires_grad

# %%
print(out.detach().sum().item(), out.is_leaf, out[0])
probabilities = out.softmax(dim=1)
history = [out.detach(), probabilities]

# %%
probabilities

# %%
best = probabilities.argmax(dim=1).tolist()
rounded = probabilities.detach().numpy().round(3)
row = net[0].weight[1]
best, rounded, row, type(out.grad_fn).__name__

# %%
def describe(tensor):
    return tuple(tensor.shape), tensor.dtype, tensor.mean().item() > 0, tensor.grad_fn is None

[describe(one) for one in (*history, row, out)]

# %%
out = net(batch)
loss = (out**2).mean()
loss.backward()
print(f"{loss:.4f} {net[0].weight.grad.norm():.4f}")

# %%
with torch.no_grad():
    for parameter in net.parameters():
        parameter -= 0.1 * parameter.grad
loss, round(loss.item(), 4), row.detach(), probabilities.sum().item() > 3.9
