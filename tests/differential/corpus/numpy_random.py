# Own generators, their state over cells, shared by two objects.

# %%
import numpy as np
import random

rng = np.random.default_rng(3)
old = np.random.RandomState(4)
dice = random.Random(5)

class Sampler:
    def __init__(self, rng):
        self.rng = rng

    def draw(self):
        return self.rng.integers(100)

sampler = Sampler(rng)

# %%
first = rng.normal(size=3)
sampler.draw()

# %%
old.rand(2), dice.random(), sampler.draw()

# %%
children = rng.spawn(2)
children[0].random(), dice.choice("abcdef")

# %%
x = rng.permutation(6)
rng.shuffle(x)
saved = rng.bit_generator.state
rng.random()

# %%
rng.bit_generator.state = saved
rng.random(), x, children[1].random(), sampler.rng is rng, dice.getstate()[1][-1], old.randint(9, size=4)
