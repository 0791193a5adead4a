# Attributes that a notebook sets on classes and modules of libraries.

# %%
import pathlib, statistics
import pandas as pd
from collections import Counter

def total(frame):
    return float(frame.sum(numeric_only=True).sum()) * factor

factor = 2
pd.DataFrame.total = total
frame = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})

# %%
frame.total()

# %%
def add_to(kind):
    def add(function):
        setattr(kind, function.__name__, function)
    return add

@add_to(Counter)
def highest(self):
    return max(self.values())

pathlib.Path.shout = property(lambda self: self.name.upper())
counts = Counter("aab")
counts.highest()

# %%
factor = 3
counts.highest(), pathlib.Path("a/b.txt").shout, frame.total()

# %%
usual = statistics.mean
statistics.mean = lambda values: "mine"
statistics.mean([1, 2])

# %%
statistics.mean([3, 4]), usual([1, 3])

# %%
statistics.mean = usual
del pd.DataFrame.total

# %%
statistics.mean([5, 7]), hasattr(frame, "total"), hasattr(counts, "highest")
