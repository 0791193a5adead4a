"""Processes that a run of the tests started and that have lost their parents.

A place finds its processes by their environment, but some have none, such as the process that keeps a sandbox open. So
a run also marks its processes with the value of a resource limit that nothing here uses. Every process inherits it, and
keeps it through every `exec`.
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
    """Marks this process, and so everything that it starts from now on."""

    def __init__(self) -> None:
        _, most = resource.getrlimit(LIMIT)
        self._mark = 1 + int.from_bytes(os.urandom(4)) % (LARGEST_MARK if most < 0 else most)
        resource.setrlimit(LIMIT, (self._mark, most))

    def processes(self) -> list[psutil.Process]:
        """Living processes with the mark that have lost their parent."""
        below = {process.pid for process in psutil.Process().children(recursive=True)} | {os.getpid()}
        return [process for process in psutil.process_iter() if process.pid not in below and self._marks(process)]

    def close(self) -> list[str]:
        """Reports what is left, and ends it."""
        return end_rest(self.processes)

    def _marks(self, process: psutil.Process) -> bool:
        try:
            lines = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
            soft = next(line for line in lines if line.startswith(NAME)).removeprefix(NAME).split()[0]
            return soft == str(self._mark) and process.status() != psutil.STATUS_ZOMBIE
        except (OSError, psutil.Error, StopIteration):
            return False
