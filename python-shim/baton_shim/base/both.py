"""Cells under `%%both`: they run in the notebook, and in each session of it before anything else does.

The notebook kernel runs such a cell like any other (`notebook/both.py`) and notes it here if it succeeds. Its code goes
to a session ahead of the state of the next `%%gpu` cell, and to each new session again, in the order of the cells.

**Invariant:** what a cell binds in a session is bound nowhere else, so the notebook's variables are what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple


class BothCell(NamedTuple):
    number: int
    """The n of `In [n]`."""
    code: str
    """As IPython transformed it."""
    given: bytes
    """The notebook's variables that it reads, as they were when it began: a pickled dictionary."""


class BothCells:
    """One end's cells, in their order. A session only runs what it is told."""

    def __init__(self, cells: list[BothCell] | None = None) -> None:
        """`cells`: those of another end, to be told to one more session."""
        self.cells = [] if cells is None else cells
        self.run: Callable[[Iterable[BothCell]], None] | None = None
        """What runs them; set in sessions."""
        self._told = 0
        self._news = 0

    def restart(self) -> None:
        """The other end is a session that has just begun."""
        self._told = 0

    def look(self) -> list[tuple[int, str, bytes]]:
        """What the other end has not run yet."""
        self._news = len(self.cells)
        return [(cell.number, cell.code, cell.given) for cell in self.cells[self._told :]]

    def commit(self) -> None:
        """The last look is on its way."""
        self._told = self._news

    def apply(self, cells: Iterable[tuple[int, str, bytes]]) -> None:
        if self.run is not None and cells:
            self.run(BothCell(*fields) for fields in cells)
