# Frames in own classes, apply with functions of the notebook, series names, updates by alignment.

# %%
import pandas as pd

class Data:
    def __init__(self):
        self.frame = pd.DataFrame({"x": range(4)}, index=list("abcd"))
        self.views = [self.frame["x"]]

    def scale(self, by):
        self.frame["x"] = self.frame["x"] * by
        return self

data = Data()

# %%
factor = 3
data.scale(factor).frame["y"] = data.frame.x.apply(lambda value: value + factor)

# %%
data.frame.update(pd.DataFrame({"y": [100.0]}, index=["b"]))
data.views.append(data.frame["y"])
print(data.frame, data.views[0].tolist())

# %%
series = data.views[1]
series.name = "renamed"
series["z"] = 1
data.frame.columns = ["p", "q"]

# %%
data.frame.query("p > @factor"), series, data.frame.eval("p + q").tolist()

# %%
data.frame["p"] += 1
data.scale = None
total = data.frame.sum()
data.views[1] is series, total.to_dict(), factor
