# A model, its optimizer and scheduler trained over several cells.

# %%
import torch

maker = torch.Generator().manual_seed(0)
x = torch.randn(32, 4, generator=maker)
y = x.sum(dim=1, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
for parameter in model.parameters():
    parameter.data = torch.randn(parameter.shape, generator=maker)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
first = model[0].weight
losses = []

# %%
def step():
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

for _ in range(3):
    step()
scheduler.step()

# %%
step()
print(len(losses), first is model[0].weight, first.grad is not None)

# %%
scheduler.step()
step()
snapshot = {name: value.clone() for name, value in model.state_dict().items()}
frozen = model.state_dict()

# %%
step()
optimizer.param_groups[0]["lr"] = 0.001
model.eval()

# %%
step()
optimizer.param_groups[0]["params"][0] is first, scheduler.optimizer is optimizer, model.training, len(optimizer.state)
