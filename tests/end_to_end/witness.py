"""Where cells record that they ran, independent of everything that a test breaks."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

PIPE_BYTES = 1 << 20
"""Room for all records of a test."""


class Witness:
    """A pipe in which cells record their runs: no fault reaches it, and sandboxed cells can write into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def names(self) -> list[str]:
        """What was recorded since the last call."""
        try:
            return os.read(self._pipe, PIPE_BYTES).decode().split()
        except BlockingIOError:  # nothing
            return []

    def close(self) -> None:
        os.close(self._pipe)
