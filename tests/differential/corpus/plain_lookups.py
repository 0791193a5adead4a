# Names looked up by text: eval, exec, globals, vars, __main__, in functions, classes, comprehensions and threads.

# %%
import sys
from concurrent.futures import ThreadPoolExecutor

rate, table = 3, {"rows": [1, 2], "deep": {"rows": None}}
rows = table["rows"]
table["deep"]["rows"] = rows
same = [table, rows]
which = "table"

def grow(name, value):
    eval(name).append(value)
    return eval("len(" + name + ")") * rate

class Registry:
    def __getitem__(self, name):
        return globals()[name]

registry = Registry()

# %%
found = eval(which)
found["new"] = eval("sa" + "me")
grow("rows", 3), registry["rows"] is rows, found["new"][0] is found

# %%
exec("total = sum(" + "rows" + ")")
exec("rows += [total]\nprint(ra" + "te)\ndel rate")
print(total, "rate" in globals(), vars()["rows"], globals().get("nobody"))

# %%
try:
    grow("rows", 0)
except NameError as problem:
    print(problem, rows)
rate = 5

# %%
class Kind:
    limit = eval("ra" + "te")
    parts = [eval(name) for name in ("rows",)]

main = sys.modules["__main__"]
getattr(main, "sa" + "me").append(Kind.parts)
hasattr(main, "nobody"), Kind.limit, Kind.parts[0] is getattr(main, "rows")

# %%
with ThreadPoolExecutor(4) as pool:
    sizes = list(pool.map(lambda name: len(eval(name)), ["rows", "table", "same", "sizes_before"][:3] * 3))
setattr(main, "made", [eval("tab" + "le")])
globals()["again"] = made
del pool
sizes, again[0] is table

# %%
eval("rows", {"rows": "mine"}), eval("rows + other", {}, {"rows": 1, "other": 2}), (lambda name: eval(name))("rate")

# %%
again[0]["rows"].clear()
del main, globals()["sizes"]
rows, same[2], same[1] is rows, "sizes" in vars()
