"""The figures that pyplot knows, under their numbers, and which of them is the current one.

They are objects of the notebook like any other, so they travel in the table's message itself, not as bytes.

**Invariant:** pyplot is never imported for it; without a figure on either side nothing travels.
"""

from __future__ import annotations

import sys
from typing import Any


class Figures:
    """One end's view of what both ends have open."""

    def __init__(self) -> None:
        self._any = False

    def depart(self) -> list[tuple[int, Any]] | None:
        """All of them, the current one last; None where the other end has nothing to do."""
        found = open_figures()
        before, self._any = self._any, bool(found)
        return found if found or before else None

    def land(self, figures: Any) -> list[str]:
        if not isinstance(figures, list):
            return []
        try:
            register(figures)
        except Exception as error:  # a backend that cannot show them here
            return [f"The figures of pyplot could not be updated ({type(error).__name__}: {error})"]
        finally:
            self._any = bool(open_figures())
        return []


def open_figures() -> list[tuple[int, Any]]:
    helpers: Any = sys.modules.get("matplotlib._pylab_helpers")
    if helpers is None:
        return []
    return [(number, manager.canvas.figure) for number, manager in helpers.Gcf.figs.items()]


def register(figures: list[tuple[int, Any]]) -> None:
    """Makes pyplot know exactly these."""
    import matplotlib.pyplot
    from matplotlib._pylab_helpers import Gcf
    from matplotlib.figure import Figure

    wanted = [(number, figure) for number, figure in figures if isinstance(figure, Figure)]
    managers: dict[int, Any] = {id(known.canvas.figure): known for known in Gcf.figs.values()}
    staying = {id(figure) for _, figure in wanted}
    for number, open_one in list(Gcf.figs.items()):
        if id(open_one.canvas.figure) not in staying:
            matplotlib.pyplot.close(number)
    Gcf.figs.clear()
    for number, figure in wanted:
        manager = managers.get(id(figure))
        if manager is None:
            # As matplotlib does when it unpickles a figure that pyplot knew.
            backend = matplotlib.pyplot._get_backend_mod()
            manager = backend.new_figure_manager_given_figure(number, figure)
        manager.num = number
        figure.number = number
        Gcf.set_active(manager)
