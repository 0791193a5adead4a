# Tensors that were computed in inference mode: torch refuses to use them for gradients.

# %%
import torch

net = torch.nn.Linear(2, 1)
torch.nn.init.ones_(net.weight)
torch.nn.init.zeros_(net.bias)
with torch.inference_mode():
    guessed = net(torch.ones(3, 2))
    part = guessed[:1]
    leaf = torch.ones(1, requires_grad=True)

# %%
print(guessed.is_inference(), part.is_inference(), leaf.is_inference(), leaf.requires_grad, guessed.requires_grad)
try:
    guessed.requires_grad_()
except RuntimeError as error:
    print(error)

# %%
with torch.inference_mode():
    guessed += 1
    more = guessed * 2
part, more.is_inference()

# %%
try:
    guessed += 1
except RuntimeError as error:
    print(error)
print(guessed, part, more.is_inference())
copy = more.clone()

# %%
copy += 1
weights = torch.ones(3, 1, requires_grad=True)
try:
    (weights * more).sum().backward()
except RuntimeError as error:
    print(error)
more, copy, copy.is_inference(), leaf

# %%
with torch.inference_mode():
    more.zero_()
print(more, copy.is_inference(), part, [p.is_inference() for p in net.parameters()])
