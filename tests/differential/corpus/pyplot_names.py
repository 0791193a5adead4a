# Functions of the notebook in open figures use names that no cell shows.

# %%
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt

unit = "m"
drawn = []

def with_unit(value, position):
    return f"{value:g} {unit}"

def on_draw(event):
    drawn.append(unit)

fig, axes = plt.subplots(figsize=(2, 1))
axes.plot([1, 2])
axes.xaxis.set_major_formatter(with_unit)
cid = fig.canvas.mpl_connect("draw_event", on_draw)

# %%
plt.savefig("m.png", metadata={"Software": None})
print(set(drawn))

# %%
unit = "km"
drawn.clear()

# %%
plt.gcf().canvas.draw()
[label.get_text() for label in plt.gca().get_xticklabels()][1:3], drawn

# %%
plt.gcf().canvas.draw()
plt.gcf().canvas.mpl_disconnect(cid)
unit = "cm"
drawn

# %%
plt.savefig("cm.png", metadata={"Software": None})
print(drawn)
