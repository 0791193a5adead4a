# Changes of a class's name and bases; a name that `except … as` deletes; iterators.

# %%
import itertools

class Animal:
    "Any animal."

class Swims:
    def move(self):
        return "swims"

class Base:
    pass

class Fish(Base):
    pass

fish = Fish()
error = "from before"
turns = itertools.count(3)

# %%
Animal.__doc__ = "Other animals."
Animal.__name__ = Animal.__qualname__ = "Beast"
Fish.__bases__ = (Swims, Base)
print(fish.move(), Animal())

# %%
print(fish.move(), Animal.__doc__, Animal(), [kind.__name__ for kind in Fish.__mro__])
try:
    1 / 0
except ZeroDivisionError as error:
    print(error)

# %%
print("error" in globals(), next(turns))
Fish.__bases__ = (Base,)

# %%
print(hasattr(fish, "move"), next(turns))
numbers = iter([1, 2, 3])
pairs = zip(numbers, "xyz")

# %%
print(next(pairs), next(turns))
