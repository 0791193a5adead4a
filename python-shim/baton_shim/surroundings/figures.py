"""The figures that pyplot knows, by number, and which of them is the current one.

They are objects of the notebook like any other, so they are sent in the table's message itself, not as bytes.

**Invariant:** pyplot is never imported for this; if neither side has a figure, nothing is sent.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from baton_shim.surroundings.plots import BACKEND

if TYPE_CHECKING:
    from baton_shim.base.undoing import OnUndo


Open = tuple[int, Any, bool]
"""Its number, the figure, and whether a live backend shows it as soon as it has a manager."""


class Figures:
    """One end's view of the open figures of both ends."""

    name, title = "figures", "The figures of pyplot"

    def __init__(self) -> None:
        self._any = self._next = False

    def restart(self) -> None:
        self._any = False

    def look(self) -> list[Open] | None:
        """All open figures, the current one last."""
        found = open_figures()
        self._next = bool(found)
        return found if found or self._any else None

    def commit(self, undo: OnUndo) -> None:
        undo(partial(setattr, self, "_any", self._any))
        self._any = self._next

    def apply(self, figures: Any, undo: OnUndo) -> None:
        if isinstance(figures, list):
            undo(partial(register, open_figures()))
            self._any = True
            register(figures)
            self._any = bool(open_figures())


def open_figures() -> list[Open]:
    helpers: Any = sys.modules.get("matplotlib._pylab_helpers")
    if helpers is None:
        return []
    figures = [(number, manager.canvas.figure) for number, manager in helpers.Gcf.figs.items()]
    return [(number, figure, not BACKEND.hides(figure)) for number, figure in figures]


def register(figures: list[Open]) -> None:
    """Makes pyplot know exactly these figures."""
    import matplotlib.pyplot
    from matplotlib._pylab_helpers import Gcf
    from matplotlib.figure import Figure

    wanted = [one for one in figures if isinstance(one[1], Figure)]
    managers: dict[int, Any] = {id(known.canvas.figure): known for known in Gcf.figs.values()}
    staying = {id(figure) for _, figure, _ in wanted}
    for number, open_one in list(Gcf.figs.items()):
        if id(open_one.canvas.figure) not in staying:
            matplotlib.pyplot.close(number)
    Gcf.figs.clear()
    for number, figure, shown in wanted:
        manager = managers.get(id(figure))
        if manager is None:
            # As matplotlib does when it unpickles a figure that pyplot knew.
            backend = matplotlib.pyplot._get_backend_mod()
            with matplotlib.pyplot.ion() if shown else matplotlib.pyplot.ioff():
                manager = backend.new_figure_manager_given_figure(number, figure)
        manager.num = number
        figure.number = number
        Gcf._set_new_active_manager(manager)
