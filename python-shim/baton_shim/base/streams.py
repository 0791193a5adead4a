"""Standard output and error of both kernels, with two differences from ipykernel's.

A flush costs nothing if nothing was written. (ipykernel flushes both several times for each cell, and waits for its
output thread each time.)

A flush includes what programs have written to the file descriptors, which a thread reads from a pipe. So the output of
`subprocess.run` belongs to the cell that ran it, even if that thread has not read it yet.

**Invariant:** what was written before `flush` is on iopub before anything that is sent there after it.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import select
import sys
import threading
from typing import Any

from ipykernel.iostream import OutStream


class Stream(OutStream):  # type: ignore[misc]
    _sends = False
    """Whether the output thread has taken the text but not sent it yet."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._reading = threading.Lock()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        super().__init__(*arguments, **options)

    def flush(self) -> None:
        if self._should_watch and self._is_master_process():
            self._read_pipe()
        pending = getattr(self, "_flush_pending", True) or getattr(self, "_subprocess_flush_pending", True)
        if pending or self._sends:
            super().flush()

    def _flush(self) -> None:
        self._sends = True
        try:
            super()._flush()
        finally:
            self._sends = False

    def _watch_pipe_fd(self) -> None:
        """The thread that reads the pipe. `close` sets `_should_watch` to false and writes a byte."""
        try:
            while self._has_bytes(None) and self._should_watch and self._read_pipe():
                pass
        except Exception:
            self._exc = sys.exc_info()

    def _has_bytes(self, timeout: float | None) -> bool:
        """Whether reading the pipe does not wait."""
        poll = select.poll()
        poll.register(self._fid, select.POLLIN)
        return bool(poll.poll(timeout))

    def _read_pipe(self) -> bool:
        """Writes what is in the pipe to the stream. Returns whether more may come."""
        with self._reading:  # no other thread has read bytes that are not written yet
            if not self._has_bytes(0):
                return True
            # At most what a pipe can hold: a program may go on writing for ever.
            read = os.read(self._fid, fcntl.fcntl(self._fid, fcntl.F_GETPIPE_SZ))
            if text := self._decode(read):
                self.write(text)
            os.write(self._original_stdstream_copy, read)
            return bool(read)
