# Views, numpy twins, tied weights, gradients that add up, hooks, buffers.

# %%
import numpy as np
import torch

base = torch.arange(12.0).reshape(3, 4)
row, turned = base[1], base.T
array = np.zeros(5)
twin = torch.from_numpy(array)
back = base.numpy()

# %%
row.add_(100)
array[2] = 7
twin[0] = 1

# %%
class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(3, 3, bias=False)
        self.two = torch.nn.Linear(3, 3, bias=False)
        self.two.weight = self.one.weight
        self.register_buffer("seen", torch.zeros(1))
        with torch.no_grad():
            self.one.weight.copy_(torch.eye(3))

    def forward(self, x):
        self.seen += 1
        return self.two(self.one(x))

tied = Tied()
print(back[1], turned[0], twin)

# %%
weight = tied.one.weight
tied(torch.ones(2, 3)).sum().backward()
gradient = weight.grad

# %%
tied(torch.ones(1, 3)).sum().backward()
with torch.no_grad():
    tied.two.weight[0, 0] = 5
tied.seen.item(), gradient is weight.grad, tied.one.weight is tied.two.weight

# %%
base[0] = -1
half = base.to(torch.bfloat16)
ids = torch.tensor([1, 2])[None].expand(3, 2)
back[0], turned[:, 0], weight[0].tolist(), ids.stride(), half.dtype

# %%
array[:] = 3
weight.grad.zero_()
twin.sum(), gradient.sum(), tied.state_dict()["two.weight"].data_ptr() == weight.data_ptr()
