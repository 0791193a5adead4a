# Modules whose weights are computed from others: their class is made at run time and forbids pickling.

# %%
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

torch.manual_seed(0)
x = torch.randn(4, 3)
critic = nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 2)), parametrizations.orthogonal(nn.Linear(2, 1)))
optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
first, original = critic[0], critic[0].parametrizations.weight.original
critic[0].weight.tolist()

# %%
for _ in range(3):
    optimizer.zero_grad()
    critic(x).sum().backward()
    optimizer.step()
critic[0].weight.tolist(), critic[1].weight.tolist()

# %%
with parametrize.cached():
    print(critic(x).tolist(), parametrize.is_parametrized(first), isinstance(first, nn.Linear))
first is critic[0], original is first.parametrizations.weight.original

# %%
class Symmetric(nn.Module):
    def forward(self, matrix):
        return matrix.triu() + matrix.triu(1).mT

    def right_inverse(self, matrix):
        return matrix.triu()


square = nn.Linear(3, 3)
parametrize.register_parametrization(square, "weight", Symmetric())
parametrize.remove_parametrizations(critic[1], "weight")
type(critic[1]), type(square).__name__

# %%
square.weight = torch.ones(3, 3)
torch.equal(square.weight, square.weight.T), critic(square(x)).tolist()
