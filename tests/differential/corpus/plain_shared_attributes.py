# Objects with one dictionary of attributes.

# %%
class Shared:
    everything = {}

    def __init__(self):
        self.__dict__ = Shared.everything


first = Shared()
first.x = 5
second = Shared()
second.x

# %%
second.x = 6
first.x, Shared.everything, first.__dict__ is second.__dict__

# %%
third = Shared()
third.y = 1
first.y, first.x

# %%
third.__dict__ = {"alone": 1}
third.z = 2
first.x, vars(third), vars(second)

# %%
third.z = 3
second.x = 7
first.x, vars(third), Shared.everything

# %%
late = vars(first)
late["w"] = 8
second.w

# %%
second.v = 9
late["v"], first.v
