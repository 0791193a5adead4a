# Copy on write: columns and slices of a frame stay apart from it, arrays beneath.

# %%
import numpy as np
import pandas as pd

data = np.arange(12.0).reshape(4, 3)
frame = pd.DataFrame(data, columns=list("abc"), copy=False)
column = frame["a"]
part = frame.iloc[1:3]
other = frame[["a", "b"]]

# %%
frame.loc[0, "a"] = 100
print(column.tolist(), other.a.tolist())

# %%
column.iloc[1] = -5
part.iloc[0, 0] = 55
frame.iloc[1].tolist()

# %%
shallow = frame.copy(deep=False)
series = pd.Series(data[:, 1], copy=False)
tail = series.iloc[2:]

# %%
shallow.iloc[3, 2] = 0
tail.iloc[0] = 1000
print(frame, series.tolist(), data.tolist())

# %%
frame += 1
frame["b"].values.flags.writeable, shallow.iloc[0, 0], series.iloc[2], other.iloc[0, 0]

# %%
renamed = frame.rename(columns={"a": "z"})
renamed.iloc[0, 0] = 12345
frame.iloc[0, 0], renamed.iloc[0, 0]
