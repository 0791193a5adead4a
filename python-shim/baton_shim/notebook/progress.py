"""The line below a long `gpu.map`: how many calls are done, or what the first ones wait for.

**Invariant:** no line in the first two seconds, and at most one change per second.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from baton_shim.notebook.options import Options

if TYPE_CHECKING:
    from baton_shim.notebook.home import Home

QUIET_SECONDS = 2.0
PACE_SECONDS = 1.0


class Progress:
    """The line of one `gpu.map` with `total` calls."""

    def __init__(self, home: Home, total: int, options: Options) -> None:
        self._home, self._total, self._quiet = home, total, options.quiet
        self._began = time.monotonic()
        self._shown: tuple[str, float] | None = None
        self._most = 0
        self.done = 0

    def look(self, runs: int, lines: Sequence[str]) -> None:
        """`runs`: the number of jobs that have left the queue. `lines`: what the others wait for."""
        self._most = max(self._most, runs)
        now = time.monotonic()
        due = now - self._began >= QUIET_SECONDS if self._shown is None else now - self._shown[1] >= PACE_SECONDS
        text = f"gpu.map: {self.done} of {self._total} calls done, {runs} {'job' if runs == 1 else 'jobs'} running"
        if not runs:
            text = lines[0] if lines else ""
        if text and due and not self._quiet and (self._shown is None or text != self._shown[0]):
            self._home.show_progress(text, first=self._shown is None, last=False)
            self._shown = text, now

    def end(self) -> None:
        if self._shown is not None:
            seconds = time.monotonic() - self._began
            text = f"gpu.map: {self.done} of {self._total} calls done in {seconds:.1f} s, at most {self._most} at once"
            self._home.show_progress(text, first=False, last=True)
