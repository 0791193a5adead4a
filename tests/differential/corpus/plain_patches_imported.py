# Functions of a module that the same cell imports and replaces; another cell restores them.

# %%
import colorsys
import math, statistics as stats
from pathlib import PurePath

calls = []

def logged(function):
    def inner(*arguments):
        calls.append(function.__name__)
        return function(*arguments)

    return inner

root, mean, convert, joined = math.sqrt, stats.mean, colorsys.rgb_to_hsv, PurePath.joinpath
math.sqrt, stats.mean = logged(math.sqrt), logged(stats.mean)
math.sqrt = logged(root)
stats.mean = logged(mean)
colorsys.rgb_to_hsv = logged(convert)
PurePath.joinpath = lambda self, *parts: "joined"

# %%
print(math.sqrt(4), stats.mean([1, 3]), colorsys.rgb_to_hsv(1, 0, 0), PurePath("a").joinpath("b"), calls)
math.sqrt = root
stats.mean = mean

# %%
print(math.sqrt(9), stats.mean([1, 2]), math.sqrt is root, stats.mean is mean, calls)
colorsys.rgb_to_hsv = convert
PurePath.joinpath = joined

# %%
print(colorsys.rgb_to_hsv(0, 1, 0), colorsys.rgb_to_hsv is convert, PurePath("a").joinpath("b").name, calls)

# %%
import random as chance
usual = chance.random
chance.random = lambda: 0.5
print(chance.random(), math.sqrt(16), len(calls))

# %%
chance.random = usual
print(chance.random() != 0.5, chance.random is usual)
del chance, usual

# %%
import random
print(random.random() != 0.5)

# %%
print(random.random() != 0.5)
