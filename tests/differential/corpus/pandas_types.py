# Nullable types, text, times with zones, periods, intervals, sparse, missing values.

# %%
import pandas as pd

text = pd.Series(["a", None, "ccc"], dtype="string" if False else "str")
whole = pd.array([1, None, 3], dtype="Int64")
times = pd.date_range("2024-03-30", periods=3, freq="D", tz="Europe/Berlin")
frame = pd.DataFrame({"text": text, "whole": whole, "time": times})

# %%
whole[1] = 5
frame.loc[2, "whole"] = pd.NA
text[0] = "changed"

# %%
frame["upper"] = frame.text.str.upper()
frame["next"] = frame.time + pd.Timedelta(days=1)
print(frame)

# %%
periods = pd.period_range("2024-01", periods=3, freq="M")
bins = pd.cut([1, 5, 9], 3)
frame["bin"] = bins
sparse = pd.arrays.SparseArray([0, 0, 1])

# %%
frame["flag"] = pd.array([True, None, False], dtype="boolean")
frame.loc[frame.flag.fillna(False), "text"] = "hit"
periods[1], bins.categories[0], sparse.density

# %%
frame.isna().sum().to_dict(), whole, times[0].tz == frame.time.dt.tz, text.tolist(), frame.bin.cat.codes.tolist()
