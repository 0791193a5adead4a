# Classes of tensors and parameters: writes through .data and .numpy(), shared memory, attributes.

# %%
import torch

class Weight(torch.nn.Parameter):
    pass

class Noted(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        made = super().__torch_function__(function, types, args, kwargs)
        if isinstance(made, cls) and function.__name__ == "mul":
            made.note = "scaled"
        return made

model = torch.nn.Linear(2, 2)
model.weight = Weight(torch.ones(2, 2))
model.bias = Weight(torch.zeros(2))
weight, base = model.weight, torch.ones(4)
noted, array = base.as_subclass(Noted), base.numpy()

# %%
for parameter in model.parameters():
    parameter.data -= 0.5
base[0] = 9
noted.note = weight

# %%
print(weight.tolist(), noted.tolist(), noted.note is model.weight)
weight.data.mul_(4)
noted.numpy()[1] = 8
scaled = noted * 2

# %%
model(torch.ones(1, 2)).sum().backward()
torch.optim.SGD(model.parameters(), lr=1).step()
array[2] = 7
scaled.data += 1

# %%
weight.data = torch.zeros(2, 3)
weight.grad = None
noted.note = scaled

# %%
weight.shape, type(weight).__name__, base.tolist(), noted.note.tolist(), noted.note.note, model.bias.tolist()
