# Time zones of the notebook, behind its own dates, and a number whose constructor requires a named argument.

# %%
import datetime
import decimal

class Stamp(datetime.datetime):
    pass

class Zone(datetime.tzinfo):
    def __init__(self, hours):
        self.hours = hours

    def utcoffset(self, when):
        return datetime.timedelta(hours=self.hours)

    def dst(self, when):
        return None

    def __reduce__(self):
        return Zone, (self.hours,)

class Amount(decimal.Decimal):
    def __new__(cls, value, *, unit):
        self = super().__new__(cls, value)
        self.unit = unit
        return self

zone = Zone(1)
stamp = Stamp(2024, 1, 1, tzinfo=zone)
stamp.note = "first"
held = [stamp, zone]
amount = Amount("1.5", unit="m")
amount.itself = amount

# %%
zone.hours = 5
print(stamp.isoformat(), amount + 1, amount.unit)

# %%
print(stamp.isoformat(), stamp.tzinfo is zone, held[0] is stamp, stamp.note, amount.itself is amount)
stamp.note = "second"
zone.hours = 7

# %%
print(stamp, stamp.note, held[0].tzinfo is held[1])
later = stamp + datetime.timedelta(1)
later.note = type(later).__name__

# %%
print(later.note, later.tzinfo is zone, amount.unit, {amount: 1}[decimal.Decimal("1.5")])
zone.hours = 2

# %%
print(later, stamp)
