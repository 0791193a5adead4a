# A dictionary of attributes that a later cell asks for.

# %%
class Point:
    pass


other = Point()
other.x = 1

# %%
seen = vars(other)

# %%
other.x = 2
seen["x"]

# %%
seen["x"] = 3
other.x
