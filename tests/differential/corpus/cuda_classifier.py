# A convolutional classifier, mixed precision, a scheduler, a recurrent net, timing with events.

# %%
import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
torch.manual_seed(2)
images = torch.randn(24, 1, 8, 8, device=device)
labels = (images.mean(dim=(1, 2, 3)) > 0).long()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.norm = nn.BatchNorm2d(4)
        self.out = nn.Linear(4 * 3 * 3, 2)

    def forward(self, x):
        x = self.norm(self.pool(F.relu(self.conv(x))))
        return self.out(torch.flatten(x, 1))

net = Net()
net.to(device)
print(device, labels.sum())

# %%
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
history = []

def epoch():
    for start in range(0, len(images), 8):
        inputs, wanted = images[start : start + 8], labels[start : start + 8]
        optimizer.zero_grad()
        loss = F.cross_entropy(net(inputs), wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    scheduler.step()
    history.append(round(loss.item(), 3))

epoch()

# %%
for _ in range(4):
    epoch()
print(len(history), history[-1] < history[0], scheduler.get_last_lr()[0] < 0.01)
running = net.norm.running_mean

# %%
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
begin.record()
with torch.no_grad():
    right = (net(images).argmax(1) == labels).sum()
end.record()
torch.cuda.synchronize()
took = begin.elapsed_time(end) >= 0
del begin, end
right.item() > 12, took, running is net.norm.running_mean, running.is_cuda

# %%
recurrent = nn.LSTM(3, 4, batch_first=True).to(device)
steps = torch.linspace(0, 1, 30, device=device).reshape(2, 5, 3)
outputs, (hidden, cell) = recurrent(steps)
outputs = outputs.detach()
hidden, cell = hidden.detach(), cell.detach()
outputs.shape, hidden.is_cuda, outputs.sum().item() != 0

# %%
net.cpu()
net.conv.weight.device, images.device, net(images[:1].cpu()).shape, torch.cuda.device_count()
