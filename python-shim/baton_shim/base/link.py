"""Frames over the private Unix socket to the process that started this kernel.

A frame is a length (8 bytes, big endian) and one MessagePack document: a map with one key, the message's name.
A message with a `delta` comes with one file descriptor. The messages are those of `protocol::shim`.

One thread at a time receives; any thread may send.

**Invariant:** an interrupt never tears a frame: waits end early only between two reads, with all bytes kept.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack

from baton_shim.base.interrupts import Interrupts
from baton_shim.base.version import __version__

_LENGTH = struct.Struct(">Q")
_READ_BYTES = 1 << 16
_LARGEST_FRAME_BYTES = 8 << 30


class LinkClosed(ConnectionError):
    """The other end has closed the connection."""


class Message(NamedTuple):
    """A received message: its name in `protocol::shim`, its fields, and perhaps a file."""

    name: str
    body: dict[str, Any]
    file_descriptor: int | None
    """The file of the message's `delta`; the receiver of the message closes it."""

    def close(self) -> None:
        if self.file_descriptor is not None:
            os.close(self.file_descriptor)


class Link:
    """The connection to the process that started this kernel."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.setblocking(False)
        self._buffer = bytearray()
        self._files: list[int] = []
        self._ahead = collections.deque[Message]()
        """Messages that `look_ahead` has received, for `receive`."""
        self._sends = threading.Lock()
        self.is_closed = False
        """Whether the other end is known to have closed."""

    @classmethod
    def to(cls, path: str) -> Link:
        """Connects to the process that listens there."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connected.connect(path)
        except OSError:
            connected.close()
            raise
        return cls(connected)

    @classmethod
    def inherited(cls, descriptor: int) -> Link:
        """Uses a connection that this process inherited.

        The first byte identifies this process to the worker, because the system records the sender.
        """
        connected = socket.socket(fileno=descriptor)
        connected.set_inheritable(False)
        connected.send(b"!")
        return cls(connected)

    def fileno(self) -> int:
        return self._socket.fileno()

    def hello(self, python: str = sys.executable, gpu_error: str | None = None) -> None:
        """Introduces this process. `gpu_error`: why a session cannot use its GPU, as the driver reports it."""
        self.send(
            "hello",
            version=__version__,
            pid=os.getpid(),
            python=python,
            python_version=f"{sys.version_info.major}.{sys.version_info.minor}",
            gpu_error=gpu_error,
        )

    def send(self, name: str, /, *, listen: bool = True, **body: Any) -> None:
        """Sends a frame, and receives meanwhile, because the other end may itself wait until its frame is read.

        Set `listen` to False if another thread receives.
        """
        document = msgpack.packb({name: body}, unicode_errors="replace")
        with self._sends:
            for part in (_LENGTH.pack(len(document)) + document[:_READ_BYTES], memoryview(document)[_READ_BYTES:]):
                self._send(memoryview(part), listen)

    def _send(self, rest: memoryview, listen: bool) -> None:
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                self._wait(select.POLLOUT | (select.POLLIN if listen else 0), None, None)
                if listen:
                    self._read()
            except (BrokenPipeError, ConnectionResetError) as error:
                self.is_closed = True
                raise LinkClosed("The process that started this kernel has ended") from error

    def receive(self, interrupts: Interrupts | None = None, timeout: float | None = None) -> Message | None:
        """The next message, or None at a timeout or interrupt."""
        if self._ahead:
            return self._ahead.popleft()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            message = self._take()
            if message is not None:
                return message
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._wait(select.POLLIN, interrupts, left):
                return None
            self._read()

    def look_ahead(self, wanted: Callable[[Message], bool], stop: int) -> bool:
        """Receives until a message is `wanted` or the connection ends; returns False once `stop` is readable instead.

        `receive` still returns all messages, in their order.
        """
        poll = select.poll()
        for descriptor in (self._socket.fileno(), stop):
            poll.register(descriptor, select.POLLIN)
        while True:
            try:
                while (message := self._take()) is not None:
                    self._ahead.append(message)
                    if wanted(message):
                        return True
                if stop in dict(poll.poll()):
                    return False
                self._read()
            except LinkClosed:  # `receive` raises it, too
                return True

    def _wait(self, events: int, interrupts: Interrupts | None, timeout: float | None) -> bool:
        """Whether the socket is ready."""
        poll = select.poll()
        poll.register(self._socket, events)
        if interrupts is not None:
            poll.register(interrupts.wake, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(None if timeout is None else timeout * 1000)}
        if interrupts is not None and interrupts.wake in ready:
            interrupts.quiet()
        return self._socket.fileno() in ready

    def _read(self) -> None:
        # At most one descriptor for each frame; the kernel ends a read after bytes that carry descriptors.
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, socket.CMSG_SPACE(4 * 4), socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data, ancillary = b"", []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._files += struct.unpack(f"{len(content) // 4}i", content[: len(content) // 4 * 4])
        if not data:
            self.is_closed = True
            raise LinkClosed("The process that started this kernel has ended")
        self._buffer += data

    def _take(self) -> Message | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > _LARGEST_FRAME_BYTES:
            raise LinkClosed(f"The other end announced a message of {length} bytes")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            ((name, body),) = msgpack.unpackb(view[_LENGTH.size : end], strict_map_key=False).items()
        del self._buffer[:end]
        file_descriptor = self._files.pop(0) if body.get("delta") is not None else None
        return Message(name, body, file_descriptor)

    def hang_up(self) -> None:
        """Closes the connection for the other end, even if a fork of this process still has it open."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.close()

    def close(self) -> None:
        self._socket.close()
        while self._ahead:
            self._ahead.popleft().close()
        for file_descriptor in self._files:
            os.close(file_descriptor)
        self._files.clear()
