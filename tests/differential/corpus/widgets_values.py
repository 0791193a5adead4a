# Widgets without a page: values, links, observers and layouts, which several cells change.

# %%
import ipywidgets as widgets

sliders = [widgets.IntSlider(value=number, max=50) for number in range(6)]
total = widgets.IntText()
seen = []

def add_up(change):
    seen.append((change["old"], change["new"]))
    total.value = sum(slider.value for slider in sliders)

for slider in sliders:
    slider.observe(add_up, "value")

# %%
sliders[2].value = 20
box = widgets.VBox([widgets.HBox(sliders[:3]), *sliders[3:], total])
total.value, seen

# %%
sliders[5].value += 10
text = widgets.FloatText()
link = widgets.dlink((total, "value"), (text, "value"))
total.value, text.value, len(box.children)

# %%
sliders[0].unobserve(add_up, "value")
sliders[0].value = 7
sliders[1].value = 8
box.layout.width = "50%"
[slider.value for slider in sliders], text.value, seen[-1]

# %%
link.unlink()
total.value = 1
found = text.value, box.children[0].children[2] is sliders[2], box.layout.width
for widget in (*sliders, total, text, box):
    widget.close()
del sliders, slider, widget, total, text, box, link, add_up
found, seen
