# Group by, merges, pivots, windows, categories, multi-index.

# %%
import pandas as pd

sales = pd.DataFrame(
    {
        "shop": pd.Categorical(["n", "s", "n", "w"]),
        "day": pd.to_datetime(["2024-01-01", "2024-01-01", "2024-01-02", "2024-01-03"]),
        "sum": [10, 20, 30, 40],
    }
)
groups = sales.groupby("shop", observed=True)

# %%
totals = groups["sum"].sum()
sales["share"] = groups["sum"].transform(lambda part: part / part.sum())
groups.obj is sales

# %%
table = sales.pivot_table(index="day", columns="shop", values="sum", aggfunc="sum", observed=True)
rolling = sales["sum"].rolling(2)
print(table, rolling.mean())

# %%
sales["shop"] = sales["shop"].cat.add_categories("e")
sales.loc[0, "shop"] = "e"
merged = sales.merge(totals.rename("total"), left_on="shop", right_index=True, how="left")

# %%
multi = sales.set_index(["shop", "day"]).sort_index()
multi.loc[("s", "2024-01-01"), "sum"] = 21
stacked = multi.stack()

# %%
merged["total"].isna().sum(), multi, sales.day.dt.day.tolist(), groups.ngroups
