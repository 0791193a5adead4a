# Attributes of instances whose library class pickles itself: dates, numbers, paths, generators of random numbers.

# %%
import array
import datetime
import decimal
import fractions
import io
import ipaddress
import pathlib
import random
from collections import OrderedDict

import numpy as np

class Money(decimal.Decimal):
    def __new__(cls, value, currency):
        self = super().__new__(cls, value)
        self.currency, self.notes = currency, []
        return self

class Offset(datetime.tzinfo):
    def __init__(self, hours):
        self.hours = hours

    def utcoffset(self, when):
        return datetime.timedelta(hours=self.hours)

class Fixed(Offset):
    def __reduce__(self):
        return Fixed, (self.hours,)

class Day(datetime.date):
    pass

class Share(fractions.Fraction):
    __slots__ = ("owner",)

class Dice(random.Random):
    def __init__(self, seed, sides):
        super().__init__(seed)
        self.sides, self.rolls = sides, []

    def roll(self):
        self.rolls.append(self.randint(1, self.sides))
        return self.rolls[-1]

class Host(ipaddress.IPv4Address):
    pass

class Samples(array.array):
    pass

class Page(io.StringIO):
    pass

class Source(np.random.Generator):
    pass

class Point(complex):
    pass

# %%
price, east, dice = Money("1.50", "EUR"), Offset(2), Dice(1, 6)
day, share, host, samples = Day(2024, 2, 29), Share(1, 3), Host("10.0.0.1"), Samples("i", [1, 2])
page, source, point, path = Page("text"), Source(np.random.PCG64(3)), Point(1 + 2j), type("Where", (pathlib.PurePosixPath,), {})("a/b")
many = [price, east, dice, day, host, samples, page, source, point, path]
share.owner = "a"
for number, one in enumerate(many):
    one.label = [number]
when = datetime.datetime(2024, 1, 1, tzinfo=east)
west = Fixed(-1)
ordered = OrderedDict(a=1)
keys = ordered.keys()

# %%
for one in many:
    one.label.append(type(one).__name__)
    one.later = True
price.notes.append("paid")
east.hours = 3
west.hours = -2
ordered["b"] = 2
print(dice.roll(), dice.roll(), dice.rolls, price + 1, price.currency, when.isoformat(), share.owner, list(keys))

# %%
for one in many:
    del one.later
west.hours -= 1
share.owner = "b"
print(west.hours, dice.roll(), source.random(), host + 1, day.isoformat(), page.read(), samples, point, path.name, keys, when.utcoffset())

# %%
print([(one.label, hasattr(one, "later"), type(one).__name__) for one in many])
print(west.hours, dice.roll(), dice.rolls, source.random(), share.owner, price.notes, Money("2", "USD").currency)
