# Rows and columns that only the notebook's outputs keep, while their data frame changes.

# %%
import numpy as np
import pandas as pd

grades = pd.DataFrame(np.arange(16).reshape((4, 4)), index=list("abcd"), columns=list("wxyz"))
grades[["y", "w"]]

# %%
grades < 5

# %%
grades[grades < 5] = 0
grades

# %%
grades.loc["b"]

# %%
grades.loc[["b", "d"]]

# %%
grades.loc[:"c", "x"]

# %%
grades.loc[:, "w"] = 1
grades.iloc[2] = 5
grades.loc[grades["z"] > 5] = 3
grades

# %%
[shown for shown in Out.values() if isinstance(shown, pd.Series) and shown.name in ("b", "x")]
