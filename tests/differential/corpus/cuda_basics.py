# From data to a saved model: a data set, a model class, a loop, a file.

# %%
import io

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
torch.manual_seed(1)

class Bars(Dataset):
    """4 x 4 pictures with a bar across or down."""

    def __len__(self):
        return 64

    def __getitem__(self, number):
        picture = torch.zeros(1, 4, 4)
        if number % 2:
            picture[0, number // 2 % 4] = 1
        else:
            picture[0, :, number // 2 % 4] = 1
        return picture, number % 2

loader = DataLoader(Bars(), batch_size=16, shuffle=True, pin_memory=True)

# %%
class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.stack = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 2))

    def forward(self, x):
        return self.stack(self.flatten(x))

model = Network().to(device)
weight = model.stack[0].weight
loss_of = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
print(model, next(model.parameters()).device)

# %%
def train():
    model.train()
    for pictures, kinds in loader:
        pictures, kinds = pictures.to(device), kinds.to(device)
        loss = loss_of(model(pictures), kinds)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return round(loss.item(), 4)

def test():
    model.eval()
    right = 0
    with torch.no_grad():
        for pictures, kinds in loader:
            right += (model(pictures.to(device)).argmax(1) == kinds.to(device)).type(torch.float).sum().item()
    return right

losses = [train() for _ in range(3)]
losses

# %%
losses += [train() for _ in range(5)]
print(test(), weight is model.stack[0].weight, losses[-1] < losses[0])

# %%
file = io.BytesIO()
torch.save(model.state_dict(), file)
file.seek(0)
copy = Network()
copy.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
file.seek(0)
loaded = torch.load(file, weights_only=True)
{value.device.type for value in loaded.values()}, next(copy.parameters()).device

# %%
picture, kind = Bars()[1]
copy.eval()
copy(picture).argmax().item() == kind, model(picture.to(device)).argmax().item() == kind
