"""Standard output and error of both kernels. Unlike ipykernel's, a flush costs nothing if nothing was written.

ipykernel flushes both several times for each cell, and waits for its output thread each time.

**Invariant:** text that was written before `flush` is on iopub before anything that is sent there after it.
"""

from __future__ import annotations

from ipykernel.iostream import OutStream


class Stream(OutStream):  # type: ignore[misc]
    _sends = False
    """Whether the output thread has taken the text but not sent it yet."""

    def flush(self) -> None:
        pending = getattr(self, "_flush_pending", True) or getattr(self, "_subprocess_flush_pending", True)
        if pending or self._sends:
            super().flush()

    def _flush(self) -> None:
        self._sends = True
        try:
            super()._flush()
        finally:
            self._sends = False
