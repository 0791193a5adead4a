# Polars frames, lazy queries, expressions, series.

# %%
import polars as pl

frame = pl.DataFrame({"a": [1, 2, 3], "b": ["x", "y", None], "c": [[1], [], [2, 3]]})
same = frame
keep = {"expr": pl.col("a") * 2}

# %%
frame = frame.with_columns(keep["expr"].alias("twice"))
lazy = frame.lazy().filter(pl.col("a") > 1)

# %%
print(frame, same.columns)
series = frame["twice"]
result = lazy.collect()

# %%
factor = 10
mapped = frame.select(pl.col("a").map_elements(lambda value: value * factor, return_dtype=pl.Int64))
groups = frame.group_by("b", maintain_order=True).agg(pl.len())

# %%
frame[0, "a"] = 100
same.insert_column(0, pl.Series("new", [7, 8, 9]))
frame.rows(), same.columns, series.to_list()

# %%
joined = frame.join(same, on="b", how="left")
joined.shape, groups.rows(), mapped.to_series().sum(), result.height, series.rename("other").name
