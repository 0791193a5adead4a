"""What every part of a cell's surroundings can do. All of them are one transaction with the variables.

Each end remembers what the other one knows. `look` says what the other end lacks, `commit` notes that it is on its
way, `apply` does what the other end said.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

from baton_shim.base.undoing import OnUndo


class Part(Protocol):
    name: str
    title: str
    """What it is, for a warning."""

    def look(self) -> Any:
        """What the other end lacks; None where that is nothing. Changes nothing that counts."""

    def commit(self) -> None:
        """The last look is on its way, in a message of the object table."""

    def apply(self, difference: Any, undo: OnUndo) -> list[str] | None:
        """Does what the other end said. Returns a line for each thing that could not be done."""

    def restart(self) -> None:
        """The other end is a process that has just begun."""


def warn(line: str) -> None:
    """Below the cell, where its own warnings are."""
    sys.stderr.write(f"warning: {line}\n")
