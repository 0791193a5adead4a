# The namespace as a whole: dir, globals, %who, %whos, loops over names, and pickles that refer to names.

# %%
import builtins
import pickle
from unittest import mock

class Point:
    def __init__(self, x):
        self.x = x

def double(value):
    return 2 * value

alpha, beta = [1], {"alpha": None}
beta["alpha"] = alpha
text, steps = "text", iter([1, 2, 3])
mine = ("Point", "alpha", "beta", "double", "gamma", "steps", "text")

# %%
print([name for name in dir() if name in mine])
print("alpha" in globals(), "gamma" in globals(), "beta" not in vars(), "steps" in locals())

# %%
%who
%who list dict

# %%
lists = {name: value for name, value in globals().items() if name in mine and isinstance(value, (list, dict))}
lists["alpha"].append(2)
list(lists), lists["beta"]["alpha"] is alpha

# %%
stored = pickle.dumps([Point(alpha), double])
point, twice = pickle.loads(stored)
point.x.append(3)
type(point) is Point, twice is double, twice(4), point.x

# %%
gamma = [name for name in get_ipython().run_line_magic("who_ls", "") if name in mine]
print(gamma, get_ipython().ev("al" + "pha"), get_ipython().ev("beta")["alpha"] is alpha)

# %%
with mock.patch("builtins.abs", lambda value: "patched"):
    print(abs(-1), eval("abs(be" + "ta)"), __builtins__.abs(-1))
builtins.extra = "seen"
print(abs(-1), extra, __builtins__.abs(-2))
del builtins.extra

# %%
for name in [name for name in globals() if name.startswith(("al", "ga"))]:
    del globals()[name]
sorted(set(dir()) & set(mine)), beta
