"""Sends a session's output over the private socket to its worker, instead of over iopub, which has no listener.

ipykernel's output thread remains the only one that writes outputs, so outputs of threads and child processes arrive in
the same order as in any kernel. A forked process sends its output through a pair of sockets to that thread.

**Invariant:** what was published before `end` is on the socket before anything that is sent there after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
from jupyter_client.session import DELIM

from baton_shim.base.link import Link, LinkClosed

# The worker refuses a message that is much larger, and ends the session.
_LARGEST_BYTES = 32 << 20

_PATIENCE_SECONDS = 3.0
"""How long a forked process waits until its output is read."""

# Messages that the notebook kernel sends itself, or that only a kernel's own clients need.
_NOT_SENT = frozenset("status execute_input execute_result iopub_welcome shutdown_reply debug_event".split())


class Publisher:
    """Replaces the output thread's socket, and records whether the thread may have work to do."""

    def __init__(self, link: Link, thread: Any) -> None:
        self._link = link
        self._socket = thread.socket
        self._schedule: Callable[[Callable[[], object]], None] = thread.schedule
        self._busy = False
        self._process = os.getpid()
        self._has_forked = False  # child processes bypass `schedule`
        self._from_forks, self._to_parent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._from_forks.setblocking(False)
        self._to_parent.settimeout(_PATIENCE_SECONDS)
        loop = thread.io_loop
        self._schedule(lambda: loop.add_handler(self._from_forks, lambda *_: self._pass_on(), loop.READ))
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

            def reach() -> None:
                self._pass_on()
                reached.set()

            self._schedule(reach)
            reached.wait()

    def end_fork(self, traceback: list[str]) -> None:
        """Ends a forked process that has returned from the cell's code, because only its parent may answer the worker.

        Without this, both would send the cell's results, and the fork would receive later cells.
        """
        if os.getpid() != self._process:
            sys.stderr.write("\n".join([*traceback, ""]) if traceback else "")
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1 if traceback else 0)

    def send_multipart(self, parts: Sequence[Any], *_: object, **__: object) -> None:
        """Called in the output thread, or in a forked process.

        The parts: topic, delimiter, signature, four JSON texts, buffers.
        """
        parts = [bytes(part) for part in parts]
        header, _parent, metadata, content, *buffers = parts[parts.index(DELIM) + 2 :]
        kind = json.loads(header)["msg_type"]
        if kind in _NOT_SENT:
            return
        if (size := sum(map(len, parts))) > _LARGEST_BYTES:
            kind, content, metadata, buffers = "stream", _left_out(size), b"{}", []
        output = {"kind": kind, "content": content, "metadata": metadata, "buffers": buffers}
        if os.getpid() == self._process:
            self._publish(output)
        else:
            self._send_to_parent(output)

    def _publish(self, output: dict[str, Any]) -> None:
        with contextlib.suppress(LinkClosed):  # the session ends with its worker
            self._link.send("published", listen=False, output=output)

    def _send_to_parent(self, output: dict[str, Any]) -> None:
        """Sends a file in memory, so that messages of several processes stay whole, whatever their size."""
        file = os.memfd_create("output")
        try:
            with open(file, "wb", closefd=False) as opened:
                opened.write(msgpack.packb(output, unicode_errors="replace"))
            with contextlib.suppress(OSError):  # the kernel has ended, or does not read
                socket.send_fds(self._to_parent, [b"!"], [file])
        finally:
            os.close(file)

    def _pass_on(self) -> None:
        """Publishes what forked processes have sent. Called in the output thread."""
        while True:
            try:
                _, files, _, _ = socket.recv_fds(self._from_forks, 1, 1)
            except BlockingIOError:
                return
            for file in files:  # none if the cell has used up all descriptors
                with open(file, "rb") as opened:
                    opened.seek(0)
                    self._publish(msgpack.unpackb(opened.read()))

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
