# A future statement holds for all later cells.

# %%
from __future__ import annotations

# %%
def f(x: Unknown) -> Missing:
    return x

f.__annotations__

# %%
class Point:
    x: NotDefined = 1

Point.__annotations__, f(Point.x)

# %%
f = lambda x: x * 2
print(f(21), Point.__annotations__)
