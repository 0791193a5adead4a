# Views of dicts stay bound to their dict; ordered and default dicts; order of insertion.

# %%
from collections import OrderedDict, defaultdict, ChainMap

table = {"b": 1, "a": 2}
keys, values, items = table.keys(), table.values(), table.items()
grouped = defaultdict(list)
ordered = OrderedDict(x=1, y=2)

# %%
table["c"] = 3
grouped["even"].append(2)
ordered.move_to_end("x")
print(list(keys), list(values))

# %%
grouped["odd"] += [1, 3]
chained = ChainMap({"a": 0}, table)
chained["new"] = 1
del table["b"]

# %%
list(items), keys & {"a", "z"}, list(ordered), chained["c"], dict(grouped)

# %%
grouped["missing"]
ordered["w"] = grouped["odd"]
holder = {"keys": keys, "grouped": grouped}
nested = defaultdict(lambda: defaultdict(int))

# %%
nested["a"]["b"] += 1
nested["a"]["c"] += 2
ordered["w"].append(5)
len(holder["keys"]), {name: dict(inner) for name, inner in nested.items()}, list(grouped)

# %%
table.clear()
table.update(z=1)
list(keys), list(values), chained.maps[1] is table
