# A script under `%run`: its functions and its variables stay together.

# %%
from pathlib import Path

Path("setup_model.py").write_text("""
class Net:
    made = 0

    def __init__(self):
        self.weights = [0.0]
        Net.made += 1

net, losses, count, scale = Net(), [], 0, 2

def train(step=1.0):
    global count
    count += 1
    net.weights[0] += step
    losses.append(net.weights[0])

def predict(x):
    return net.weights[0] * x * scale

def seen():
    return count, list(losses)
""")

# %%
%run setup_model.py
train()
predict(1), seen()

# %%
train()
train(0.5)
net.weights, losses, predict(3), seen()

# %%
net.weights[0] = 7.0
again = Net()
first = train
predict(1), seen(), Net.made, isinstance(again, Net)

# %%
first(2.0)
scale = 5
predict(1), seen(), net.weights, losses

# %%
%run setup_model.py
train()
first()
predict(1), seen(), net.weights, losses, isinstance(again, Net)

# %%
script = {"values": [1]}
exec("def add(x): values.append(x); return total()\ndef total(): return sum(values)", script)
add, total = script["add"], script["total"]
del script
add(2), total()

# %%
add(3), total(), predict(2), seen()
