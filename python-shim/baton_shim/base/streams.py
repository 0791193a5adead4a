"""Standard output and error of both kernels: as in any kernel, but flushing costs nothing where nothing was written.

ipykernel flushes both several times for each cell, and each time waits for its output thread.

**Invariant:** what was written before `flush` is on iopub before what is sent there after it.
"""

from __future__ import annotations

from ipykernel.iostream import OutStream


class Stream(OutStream):  # type: ignore[misc]
    def flush(self) -> None:
        # Else nothing waits, or the output thread, which sends everything in order, is about to send it.
        if getattr(self, "_flush_pending", True) or getattr(self, "_subprocess_flush_pending", True):
            super().flush()
