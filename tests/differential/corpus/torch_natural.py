# The way a student writes it: global seed, default weights, a loader that shuffles, dropout, a loss that is kept.

# %%
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(24, 3)
y = (x.sum(dim=1) > 0).long()
data = TensorDataset(x, y)
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
print(model)

# %%
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())

# %%
for inputs, targets in loader:
    optimizer.zero_grad(set_to_none=False)
    loss = criterion(model(inputs), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
total = loss.detach() + 1
loss, len(loader)

# %%
model.eval()
with torch.no_grad():
    predicted = model(x).argmax(dim=1)
accuracy = (predicted == y).float().mean()
saved = {name: value.clone() for name, value in model.state_dict().items()}
print(accuracy, loss.item(), torch.rand(2))

# %%
best = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
best.load_state_dict(saved)
optimizer.load_state_dict(optimizer.state_dict())
model[0].weight.requires_grad_(False)
optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 0.5})

# %%
model.train()
loss = criterion(model(x), y)
loss.backward()
optimizer.step()
optimizer, torch.equal(best[0].weight, model[0].weight), model[0].weight.requires_grad, loss.item()

# %%
del loss, inputs, targets
[round(value, 5) for value in model[4].bias.tolist()], torch.randperm(4), torch.initial_seed()
