"""Sends a session's output over the private socket to its worker, instead of over iopub, which has no listener.

ipykernel's output thread remains the only one that writes outputs, so outputs of threads and child processes arrive in
the same order as in any kernel.

**Invariant:** what was published before `end` is on the socket before anything that is sent there after it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from jupyter_client.session import DELIM

from baton_shim.base.link import Link, LinkClosed

# The worker refuses a message that is much larger, and ends the session.
_LARGEST_BYTES = 32 << 20

# Messages that the notebook kernel sends itself, or that only a kernel's own clients need.
_NOT_SENT = frozenset("status execute_input execute_result iopub_welcome shutdown_reply debug_event".split())


class Publisher:
    """Replaces the output thread's socket, and records whether the thread may have work to do."""

    def __init__(self, link: Link, thread: Any) -> None:
        self._link = link
        self._socket = thread.socket
        self._schedule: Callable[[Callable[[], object]], None] = thread.schedule
        self._busy = False
        self._has_forked = False  # child processes bypass `schedule`
        os.register_at_fork(after_in_parent=self._note_fork)
        thread.schedule = self._schedule_and_note
        thread.socket = self

    def end(self) -> None:
        """Returns once all output so far has been sent."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self._busy or self._has_forked:
            self._busy = False
            reached = threading.Event()
            self._schedule(reached.set)
            reached.wait()

    def send_multipart(self, parts: Sequence[Any], *_: object, **__: object) -> None:
        """Called in the output thread. The parts: topic, delimiter, signature, four JSON texts, buffers."""
        parts = [bytes(part) for part in parts]
        header, _parent, metadata, content, *buffers = parts[parts.index(DELIM) + 2 :]
        kind = json.loads(header)["msg_type"]
        if kind in _NOT_SENT:
            return
        if (size := sum(map(len, parts))) > _LARGEST_BYTES:
            kind, content, metadata, buffers = "stream", _left_out(size), b"{}", []
        output = {"kind": kind, "content": content, "metadata": metadata, "buffers": buffers}
        try:
            self._link.send("published", listen=False, output=output)
        except LinkClosed:
            pass  # the session ends with its worker

    def _schedule_and_note(self, work: Callable[[], object]) -> None:
        self._busy = True
        self._schedule(work)

    def _note_fork(self) -> None:
        self._has_forked = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


def _left_out(size: int) -> bytes:
    text = f"Baton left out an output of {size >> 20} MiB here: one output may have {_LARGEST_BYTES >> 20} MiB\n"
    return json.dumps({"name": "stderr", "text": text}).encode()
