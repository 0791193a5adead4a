# Objects of the notebook in arrays, data frames and weak references, whose methods use its functions.

# %%
import weakref

import numpy as np
import pandas as pd

scale = 3

def double(x):
    return 2 * x * scale

class Net:
    def __init__(self, weight):
        self.weight = weight

    def forward(self, x):
        return double(x) + self.weight

def square(x):
    return x**2 + scale

nets = np.array([Net(1), Net(2)], dtype=object)
functions = np.array([[square, len]], dtype=object)
trials = pd.DataFrame({"rate": [0.1, 0.2], "net": [Net(3), Net(4)]})
kept = Net(5)
known, back = weakref.WeakSet([kept]), weakref.ref(kept)

# %%
print([net.forward(1) for net in nets])

# %%
print(functions[0, 0](4))

# %%
print(trials.net.apply(lambda net: net.forward(2)).tolist())

# %%
print([net.forward(3) for net in known], back().forward(4), back() is kept)

# %%
kept.weight = 6
print(back().forward(0))
