# Names that are taken out of libraries, and belong to an object that the library has one of.

# %%
import os, random
import numpy as np
from os import environ
from random import choice, randint, seed, shuffle
from numpy.random import rand, seed as seed_numpy

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
seed(4)
cards = list(range(8))
shuffle(cards)
del environ
cards, random.random(), own.random()
