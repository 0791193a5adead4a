# Figures that a library makes, shown later by a cell that has not imported pyplot.

# %%
import pandas as pd

df = pd.DataFrame({"u": [1, 2], "v": [3, 1]})

# %%
ax = df.plot(figsize=(2, 2))

# %%
ax.set_title("late")
ax.figure

# %%
bars = df["v"].plot.bar(ax=ax.figure.add_subplot(position=(0.5, 0.5, 0.2, 0.2)))
bars is ax.figure.axes[1]

# %%
bars.set_facecolor("gray")
bars.figure
