"""One line, once, when an ordinary cell computes for long on the virtual GPU."""

from __future__ import annotations

import sys
import time
from typing import Any

LONG_SECONDS = 10.0
TEXT = (
    "hint: 'cuda' is virtual in an ordinary cell, so this one computes on the CPU; "
    "write %%gpu on its first line to run it on a GPU\n"
)


class Watch:
    def __init__(self) -> None:
        self._began: float | None = None
        self._said = False

    def begin(self, shell: Any) -> None:
        """In the notebook kernel; a session needs no hint."""
        shell.events.register("pre_run_cell", self._cell_begins)
        shell.events.register("post_run_cell", self.cell_ended)

    def _cell_begins(self, info: object = None) -> None:
        self._began = None if self._said else time.monotonic()

    def cell_ended(self, result: object = None) -> None:
        """Or goes on somewhere else."""
        self._began = None

    def computing(self) -> None:
        """A tensor on the virtual GPU is being computed."""
        if self._began is not None and time.monotonic() - self._began > LONG_SECONDS:
            self._began, self._said = None, True
            sys.stdout.flush()
            sys.stderr.write(TEXT)


WATCH = Watch()
