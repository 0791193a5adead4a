# Subclasses of list, dict, int, str, tuple, set with attributes and overridden methods.

# %%
class Stack(list):
    def __init__(self, *items, name="stack"):
        super().__init__(items)
        self.name = name

    def __iter__(self):
        return iter(reversed(list.__iter__(self) and [*list.__iter__(self)]))

class Loud(dict):
    log = []

    def __setitem__(self, key, value):
        self.log.append(key)
        super().__setitem__(key, value)

    def __missing__(self, key):
        return f"no {key}"

class Metres(float):
    pass

class Tag(str):
    __slots__ = ()

# %%
stack = Stack(1, 2)
loud = Loud(a=1)
length = Metres(2.5)
length.unit = "m"

# %%
stack.append(loud)
loud["b"] = stack
print(list(stack), loud["zzz"], Loud.log)

# %%
length.unit = ["metres"]
tags = {Tag("x"), Tag("y")}
class Bag(set):
    pass
bag = Bag(tags)
bag.label = "bag"

# %%
bag.add(Tag("z"))
stack.name = bag.label
loud.extra = length
sorted(bag), stack.name, loud.extra.unit, type(sorted(bag)[0]).__name__

# %%
loud.update(c=3)
loud["d"] = 4
stack.pop(0)
length.unit.append(1)
Loud.log, [*stack], length + 1, len(bag)
