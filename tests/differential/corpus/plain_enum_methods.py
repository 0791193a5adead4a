# Enumerations whose methods change: special ones, private ones, and what looks values up.

# %%
from enum import Enum, IntFlag

class Shape(Enum):
    ROUND = ["o"]
    FLAT = ["_"]

    def _first(self):
        return self.value[0]

class Access(IntFlag):
    READ = 1
    WRITE = 2

shape = Shape.FLAT

# %%
Shape.__str__ = lambda self: f"a {self.name.lower()} one"
Shape._missing_ = classmethod(lambda cls, value: cls.ROUND)

# %%
print(shape, shape._first(), Shape("square") is Shape.ROUND)
Shape._first = lambda self: self.value[-1]
shape.value.append("=")

# %%
print(shape._first(), Shape.FLAT.value)
Access.__len__ = lambda self: bin(self).count("1")
Shape.__doc__ = "What it looks like."

# %%
del Shape.__str__, Shape._missing_
both = Access.READ | Access.WRITE

# %%
str(shape), len(both), list(both), Shape.__doc__, both is Access(3)
