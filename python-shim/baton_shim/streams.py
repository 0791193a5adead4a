"""Standard output and error of both kernels: as in any kernel, but flushing costs nothing where nothing was written.

ipykernel flushes both several times for each cell, and each time waits for its output thread.

**Invariant:** what was written before `flush` is on iopub before what is sent there after it.
"""

from __future__ import annotations

from ipykernel.iostream import OutStream


class Stream(OutStream):  # type: ignore[misc]
    _written = False

    def write(self, string: str) -> int | None:
        count: int | None = super().write(string)
        self._written = True
        return count

    def flush(self) -> None:
        if self._written:
            self._written = False  # before: another thread may write meanwhile
            super().flush()
