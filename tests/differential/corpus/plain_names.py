# Names: deleted, rebound, made global, star imports, walrus, loops, comprehension, type aliases.

# %%
from math import *
import os.path as paths
a = b = c = 1
values = [n := 10, n**2]

# %%
del b
a, (c, *rest) = 5, [1, 2, 3]
for index, letter in enumerate("xyz"):
    last = letter

# %%
def make():
    global created, c
    created = [floor(2.7)]
    c = "c"

make()
print(sorted(name for name in ("a", "b", "c", "created", "index", "letter") if name in globals()))

# %%
created.append(pi)
a = make
match rest:
    case [x, y]:
        total = x + y

# %%
a is make, total, index, letter, n, paths.basename("/x/y")

# %%
del a, make
with open("/dev/null") as handle:
    kind = type(handle).__name__
total += created[0]
del handle
kind, total
