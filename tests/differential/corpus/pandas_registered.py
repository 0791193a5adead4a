# Accessors that the notebook registers on frames of pandas and polars.

# %%
import pandas as pd, polars as pl
factor = 2

@pd.api.extensions.register_series_accessor("scaled")
class Scaled:
    def __init__(self, series):
        self.series = series

    def total(self):
        return float(self.series.sum()) * factor

frame = pd.DataFrame({"g": list("aabb"), "v": [1.0, 2.0, 3.0, 4.0]})

# %%
frame.v.scaled.total()

# %%
@pd.api.extensions.register_dataframe_accessor("shape_of")
class ShapeOf:
    def __init__(self, frame):
        self.frame = frame

    def text(self):
        return "x".join(map(str, self.frame.shape))

@pl.api.register_dataframe_namespace("shape_of")
class ShapeOfPolars(ShapeOf):
    pass

other = pl.DataFrame({"a": [1, 2, 3]})

# %%
factor = 10
frame.shape_of.text(), other.shape_of.text(), frame.groupby("g").v.apply(lambda part: part.scaled.total()).to_dict()

# %%
frame["w"] = frame.v.scaled.total()
frame.shape_of.text(), frame.shape_of.frame is frame

# %%
del pd.Series.scaled
pd.Series._accessors.discard("scaled")

# %%
hasattr(frame.v, "scaled"), other.shape_of.text()
