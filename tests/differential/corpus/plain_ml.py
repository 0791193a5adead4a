# A small network by hand: what a student writes before learning a library.

# %%
import numpy as np

rng = np.random.default_rng(7)

class Layer:
    def __init__(self, inputs, outputs):
        self.w = rng.normal(size=(inputs, outputs))
        self.b = np.zeros(outputs)
        self.params = [self.w, self.b]

    def forward(self, x):
        self.x = x
        return np.tanh(x @ self.w + self.b)

class Net:
    def __init__(self, *sizes):
        self.layers = [Layer(a, b) for a, b in zip(sizes, sizes[1:])]
        self.history = {"loss": []}

    @property
    def params(self):
        return [p for layer in self.layers for p in layer.params]

net = Net(3, 4, 1)
velocity = {id(p): np.zeros_like(p) for p in net.params} if False else [np.zeros_like(p) for p in net.params]

# %%
x = rng.normal(size=(20, 3))
y = x[:, :1] * 2

def train(net, epochs):
    for _ in range(epochs):
        out = x
        for layer in net.layers:
            out = layer.forward(out)
        error = out - y
        for p, v in zip(net.params, velocity):
            v *= 0.9
            v -= 0.01 * error.mean()
            p += v
        net.history["loss"].append(float((error**2).mean()))

train(net, 3)

# %%
train(net, 2)
best = min(net.history["loss"])
print(len(net.history["loss"]), net.layers[0].params[0] is net.layers[0].w)

# %%
net.layers[0].w[:] = 1
saved = [p.copy() for p in net.params]
train(net, 1)

# %%
for p, s in zip(net.params, saved):
    p[...] = s
net.layers.append(Layer(1, 1))
velocity += [np.zeros_like(p) for p in net.layers[-1].params]

# %%
train(net, 1)
round(best, 6), net.layers[1].params[1], np.allclose(net.layers[0].w, net.params[0]), net.history["loss"][-1]
