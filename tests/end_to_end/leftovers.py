"""Processes that a run of the tests started and that belong to nobody any more.

A place finds its processes by their environment, but some get none, such as what holds a sandbox open. A limit that
nothing here uses is inherited by every process, through every `exec`; its value is this run's mark.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

import psutil

from end_to_end.place import end_rest

LIMIT = resource.RLIMIT_MSGQUEUE  # type: ignore[attr-defined]
NAME = "Max msgqueue size"
LARGEST_MARK = 800_000


class Leftovers:
    """Marks this process, and so all that it starts from now on."""

    def __init__(self) -> None:
        _, most = resource.getrlimit(LIMIT)
        self._mark = 1 + int.from_bytes(os.urandom(4)) % (LARGEST_MARK if most < 0 else most)
        resource.setrlimit(LIMIT, (self._mark, most))

    def processes(self) -> list[psutil.Process]:
        """Those with the mark that live and have lost their parent."""
        below = {process.pid for process in psutil.Process().children(recursive=True)} | {os.getpid()}
        return [process for process in psutil.process_iter() if process.pid not in below and self._marks(process)]

    def close(self) -> list[str]:
        """Says what is left, and ends it."""
        return end_rest(self.processes)

    def _marks(self, process: psutil.Process) -> bool:
        try:
            lines = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
            soft = next(line for line in lines if line.startswith(NAME)).removeprefix(NAME).split()[0]
            return soft == str(self._mark) and process.status() != psutil.STATUS_ZOMBIE
        except (OSError, psutil.Error, StopIteration):
            return False
