# Names that are taken from libraries, and belong to an object of which the library has exactly one.

# %%
import decimal, math, os, random, sys
import numpy as np
from os import environ
from random import choice, randint, seed, shuffle
from numpy.random import rand, seed as seed_numpy
from sys import modules, path

# %%
seed(0)
seed_numpy(0)
[randint(0, 99), random.randint(0, 99)], [float(rand()), float(np.random.rand())]

# %%
random.seed(1)
np.random.seed(1)
[randint(0, 99), choice("abcdef"), random.random()], [float(rand()), float(np.random.rand())]

# %%
environ["COURSE"] = "one"
own = random.Random(5)
environ is os.environ, os.environ["COURSE"], os.getenv("COURSE"), own.random()

# %%
os.environ["COURSE"] = "two"
environ["COURSE"], randint.__self__ is random._inst, randint.__self__ is own

# %%
path.append("/nowhere")
context = decimal.getcontext()
context.prec = 5
values = [np.nan, 1.5, math.nan]
path is sys.path, modules is sys.modules, np.nan in values

# %%
decimal.setcontext(decimal.Context(prec=3))
print(decimal.Decimal(1) / 3, context.prec, context is decimal.getcontext())
path.remove("/nowhere")
np.nan in values, math.nan in values, sys.path is path, "/nowhere" in sys.path

# %%
seed(4)
del modules, path
cards = list(range(8))
shuffle(cards)
del environ
cards, random.random(), own.random()
