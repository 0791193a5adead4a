# Named tuples, typed ones, tuples that hold mutable objects.

# %%
from collections import namedtuple
from typing import NamedTuple

Row = namedtuple("Row", "name values", defaults=[()])

class Entry(NamedTuple):
    key: str
    values: list

    def total(self):
        return sum(self.values)

# %%
values = [1, 2]
row, entry = Row("r", values), Entry("e", values)
table = {row.name: row, entry: None} if False else {row.name: row}

# %%
values.append(3)
entry.values.append(4)
print(row, entry.total())

# %%
row = row._replace(name="other")
a, b = entry
nested = ((row, entry), [entry])

# %%
b += [5]
nested[1].append(nested[0][0])
entry.total(), nested[0][0].values is b, Row._fields, table["r"].values is values

# %%
isinstance(entry, Entry), type(row) is Row, nested[1][1] is row
