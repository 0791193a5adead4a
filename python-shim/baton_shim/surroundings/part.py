"""The interface of each part of a cell's surroundings. All parts are one transaction with the variables.

Each end remembers what the other one knows. `look` returns what the other end lacks, `commit` records that it has been
sent, and `apply` applies what the other end sent.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

from baton_shim.base.undoing import OnUndo


class Part(Protocol):
    name: str
    title: str
    """What warnings call it."""

    def look(self) -> Any:
        """What the other end lacks; None if nothing. Changes nothing that other code can see."""

    def commit(self, undo: OnUndo) -> None:
        """The last look has been sent, in a message of the object table. The undo is for one that no end received."""

    def apply(self, difference: Any, undo: OnUndo) -> list[str] | None:
        """Applies what the other end sent. Returns a line for each thing that could not be done."""

    def restart(self) -> None:
        """The other end is a new process."""


def warn(line: str) -> None:
    """Shows the line below the cell, like the cell's own warnings."""
    sys.stderr.write(f"warning: {line}\n")
