# Slots: unset ones, inherited ones, with and without a dict, weak references, private names.

# %%
class Base:
    __slots__ = ("left", "right")

class Child(Base):
    __slots__ = ("middle", "__hidden")

    def __init__(self):
        self.left, self.middle, self.__hidden = [], (), {"a": 1}

    def hidden(self):
        return self.__hidden

class Open(Base):
    pass

# %%
one, two = Child(), Open()
one.right = two
two.left = one.left
two.extra = one

# %%
one.left.append("x")
one.hidden()["b"] = two
del one.right
two.extra2 = one.hidden()

# %%
print(hasattr(one, "right"), hasattr(one, "__dict__"), hasattr(two, "__dict__"), two.left)
one.middle = (one, two)

# %%
del one.left
one.right = one.middle
two.right = one.hidden

# %%
two.right()["c"] = 3
sorted(one.hidden()), two.extra2 is one.hidden(), one.right[0] is one
