"""Notebooks with widgets: with `%%gpu` on every cell, compared with the same notebooks in a plain kernel.

Both kernels run each notebook in turns; each run makes new widgets and deletes those of the run before.
"""

from __future__ import annotations

from typing import Any

from measuring import Kernel, kernels, milliseconds, private_place, report, summary

RUNS = 7
TARGET = 2.0
IMPORT = "import ipywidgets as widgets\nfrom IPython.display import display"
NOTEBOOKS = {
    "ten sliders": (
        "sliders = [widgets.IntSlider(value=n, max=50, description=str(n)) for n in range(10)]\n"
        "display(widgets.VBox(sliders))",
        "for slider in sliders: slider.value += 1",
    ),
    "a layout of 200 widgets, and `interact`": (
        "buttons = [widgets.Button(description=str(n), layout=widgets.Layout(width='auto')) for n in range(80)]\n"
        "grid = widgets.GridBox(buttons, layout=widgets.Layout(grid_template_columns='repeat(8, 12%)'))",
        "rows = [widgets.HBox([widgets.Label(str(n)), widgets.FloatText(n), widgets.Checkbox()]) for n in range(25)]\n"
        "tabs = widgets.Tab([widgets.VBox(rows), widgets.Accordion([grid])], titles=('rows', 'grid'))",
        "display(tabs)",
        "for row in rows: row.children[1].value += 1",
        "seen = []\nwidgets.interact(lambda x, y, z: seen.append((x, y, z)), x=10, y=True, z=['a', 'b'])",
        "for button in buttons: button.layout.width = '5em'",
        "buttons[0].description = 'first'",
        "len(tabs.children), seen",
    ),
}


def main() -> None:
    rows: dict[str, dict[str, Any]] = {}
    verdict = {}
    with private_place() as place, kernels(place, "python3", "baton") as (plain, baton):
        plain.run(IMPORT).ok()
        baton.gpu(IMPORT).ok()
        for name, cells in NOTEBOOKS.items():
            times: dict[str, list[float]] = {"plain": [], "with %%gpu": []}
            for _ in range(RUNS):
                times["plain"].append(milliseconds(lambda cells=cells: run(plain, "", cells)))
                times["with %%gpu"].append(milliseconds(lambda cells=cells: run(baton, "%%gpu\n", cells)))
            rows |= {f"{name}, {way}": summary(taken) for way, taken in times.items()}
            ratio = rows[f"{name}, with %%gpu"]["p50_ms"] / rows[f"{name}, plain"]["p50_ms"]
            verdict[name] = f"{ratio:.1f} times (target: at most {TARGET})"
    report("widgets", rows, verdict)


def run(kernel: Kernel, magic: str, cells: tuple[str, ...]) -> None:
    for cell in cells:
        kernel.run(magic + cell).ok()


if __name__ == "__main__":
    main()
