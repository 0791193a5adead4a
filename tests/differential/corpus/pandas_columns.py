# New columns, renames, drops, in place, attributes, changed dtypes, index.

# %%
import pandas as pd

frame = pd.DataFrame({"a": [1, 2, 3], "b": [1.5, 2.5, 3.5], "c": ["x", "y", "z"]})
same = frame
held = {"frame": frame}

# %%
frame["d"] = frame.a * frame.b
frame.rename(columns={"c": "text"}, inplace=True)

# %%
frame["a"] = frame["a"].astype("float32")
frame.drop(columns="b", inplace=True)
print(held["frame"], same is frame)

# %%
frame.index = pd.Index(["r1", "r2", "r3"], name="row")
frame.attrs["source"] = ["test"]
frame.loc["r4"] = [9, "new", 1.25]

# %%
frame.insert(1, "half", frame["d"] / 2)
frame.columns.name = "names"
popped = frame.pop("a")

# %%
same.loc["r2", "text"] = "changed"
frame.sort_values("d", ascending=False, inplace=True)
frame

# %%
frame.set_index("text", append=True, inplace=True)
held["frame"].shape, frame.dtypes.to_dict(), popped.sum(), same is held["frame"], frame.attrs
