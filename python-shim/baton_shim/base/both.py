"""Cells under `%%both`: they run in the notebook, and in each of its sessions before anything else runs there.

The notebook kernel runs such a cell like any other (`notebook/both.py`) and records it here if it succeeds. Its code is
sent to a session ahead of the state of the next `%%gpu` cell, and to each new session again, in the order of the cells.

**Invariant:** what a cell binds in a session is bound only there; the notebook's variables are the ones that count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from baton_shim.base.undoing import OnUndo


class BothCell(NamedTuple):
    number: int
    """The n of `In [n]`."""
    code: str
    """The code after IPython's transformations."""
    given: bytes
    """The notebook's variables that the code reads, as they were before it ran: a pickled dictionary."""


class BothCells:
    """The cells that one end knows, in order. A session runs only the cells that it is sent."""

    def __init__(self, cells: list[BothCell] | None = None) -> None:
        """`cells`: the cells of another table, to be sent to one more session."""
        self.cells = [] if cells is None else cells
        self.run: Callable[[Iterable[BothCell]], None] | None = None
        """Runs the cells; set in sessions."""
        self._sent = 0
        self._news = 0

    def restart(self) -> None:
        """The other end is a new session."""
        self._sent = 0

    def look(self) -> list[tuple[int, str, bytes]]:
        """The cells that the other end has not run yet."""
        self._news = len(self.cells)
        return [(cell.number, cell.code, cell.given) for cell in self.cells[self._sent :]]

    def commit(self, undo: OnUndo) -> None:
        """The cells of the last `look` have been sent."""
        undo(partial(setattr, self, "_sent", self._sent))
        self._sent = self._news

    def apply(self, cells: Iterable[tuple[int, str, bytes]]) -> None:
        if self.run is not None and cells:
            self.run(BothCell(*fields) for fields in cells)
