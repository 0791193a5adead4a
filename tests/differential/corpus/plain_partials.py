# Partial functions and objects with their own pickling share a dict with the notebook.

# %%
from functools import partial

class Holder:
    def __init__(self, meta, items):
        self.meta, self.items = meta, items

    def __getstate__(self):
        return self.meta, self.items

    def __setstate__(self, state):
        self.meta, self.items = state

def train_step(stats, lr):
    stats["steps"] += 1
    stats["lr"] = lr

stats = {"steps": 0}
step = partial(train_step, stats)
holder = Holder(stats, [stats])

# %%
step(0.1)
print(stats, holder.meta is stats)

# %%
step(0.2)
holder.items.append(step.args[0])

# %%
step(0.3)
print(stats, step.args[0] is stats, holder.items[1] is stats)

# %%
holder.meta["steps"] = 10

# %%
step(0.4)
stats, holder.meta is holder.items[0] is step.args[0]
