# Times, decimals, fractions, paths, patterns, ranges, slices, uuid, types as values.

# %%
import datetime
import decimal
import fractions
import pathlib
import re
import uuid

moment = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.timezone.utc)
price = decimal.Decimal("1.10")
context = decimal.Context(prec=4)
pattern = re.compile(r"(\w+)@(\w+)")
place = pathlib.Path("a") / "b"

# %%
later = moment + datetime.timedelta(days=1)
table = {moment: price, place: fractions.Fraction(1, 3), pattern: slice(1, 2), uuid.UUID(int=5): range(3)}
context.prec = 7

# %%
print(context.divide(price, decimal.Decimal(3)), table[pathlib.Path("a/b")], later in table)
kinds = [int, list[int], int | None, type(None), ..., NotImplemented]

# %%
class Zone(datetime.tzinfo):
    def utcoffset(self, moment):
        return datetime.timedelta(hours=2)

    def dst(self, moment):
        return None

local = moment.astimezone(Zone())

# %%
local.hour, kinds[1] == list[int], kinds[4] is ..., pattern.search("me@home").groups(), local.tzinfo.utcoffset(None)

# %%
table.pop(moment)
place /= "c"
str(place), len(table), context.prec, later.isoformat(), isinstance(local.tzinfo, Zone)
