# Classes of tuples whose instances have attributes, and which hold mutable objects.

# %%
from collections import namedtuple
from typing import NamedTuple

import numpy as np

class Pair(namedtuple("Parts", "left right")):
    def swapped(self):
        return type(self)(self.right, self.left)

class Entry(NamedTuple):
    values: list

class Path(tuple):
    pass

class Noted(Entry):
    pass

# %%
pair = Pair([1], np.zeros(3))
path = Path(([2], pair))
noted = Noted([3])
left, held = pair.left, {"pair": pair, path[0][0]: path}

# %%
pair.left.append(4)
pair.right[1] = 5
noted.values.append(left)
path[0].append(noted)

# %%
pair.note = path[0]
noted.values[1].append(6)
print(pair, path[0], held[2] is path)

# %%
pair.note.append(7)
turned = pair.swapped()
turned.left[0] = 8
del noted.values[0]

# %%
pair.right.tolist(), turned.right is left, path, pair.note is path[0], noted, held["pair"] is pair
