# Enumerations: members by identity, flags, attributes, methods, members as keys.

# %%
from enum import Enum, Flag, IntEnum, auto

class Color(Enum):
    RED = 1
    GREEN = 2
    CRIMSON = 1

    @property
    def nice(self):
        return self.name.title()

class Access(Flag):
    READ = auto()
    WRITE = auto()

# %%
favourite = Color.RED
votes = {Color.RED: 1, Color.GREEN: 0}
rights = Access.READ | Access.WRITE

# %%
votes[Color.CRIMSON] += 5
print(favourite is Color.CRIMSON, Color(2) is Color.GREEN, rights & Access.READ)

# %%
class Level(IntEnum):
    LOW = 1
    HIGH = 10

levels = [Level.HIGH, Level.LOW, Level(10)]
levels.sort()
favourite.nice

# %%
only_read = rights & ~Access.WRITE
[level is Level.HIGH for level in levels], only_read is Access.READ, favourite in votes

# %%
Color.RED.remembered = votes
class Planet(Enum):
    EARTH = (1.0, 2.0)
    def __init__(self, mass, radius):
        self.mass, self.radius = mass, radius

# %%
favourite.remembered[Planet.EARTH] = Planet.EARTH.mass
votes
