"""The object tables of two real kernels, with the test in the role of the Rust processes between them.

`Pair` is the notebook (this process) and a session (a child process). The harness reads a snapshot's segments from the
process that owns them, puts them into a sealed memfd as the assembler does, and passes that to the other side.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from baton_shim.state import Budget, Refused, Snapshot, Table
from baton_shim.state.message import Stream
from baton_shim.virtual import SWITCH

CHUNK_BYTES = 4096  # small, so that small tests have more than one
_FOLDER = Path(__file__).resolve().parent
_LENGTH = struct.Struct(">Q")
_SEALS = 0x1 | 0x2 | 0x4 | 0x8  # seal, shrink, grow, write


class IoVector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


_library = ctypes.CDLL(None, use_errno=True)


def read_memory(pid: int, address: int, size: int) -> bytes:
    """Uses `process_vm_readv`, as the proxy and the worker do."""
    buffer = ctypes.create_string_buffer(size)
    mine, theirs = IoVector(ctypes.addressof(buffer), size), IoVector(address, size)
    count = _library.process_vm_readv(
        ctypes.c_int(pid),
        ctypes.byref(mine),
        ctypes.c_ulong(1),
        ctypes.byref(theirs),
        ctypes.c_ulong(1),
        ctypes.c_ulong(0),
    )
    if count != size:
        raise OSError(ctypes.get_errno(), f"Reading {size} bytes at {address:#x} of process {pid} gave {count}")
    return buffer.raw


class Wire:
    """What both ends hold of each segment, and how much the last message transferred."""

    def __init__(self) -> None:
        self.segments: dict[int, bytes] = {}
        self.stream_bytes = 0
        self.segment_bytes = 0

    def carry(self, snapshot: Snapshot, pid: int) -> tuple[dict[str, Any], int]:
        """A snapshot of that process as a delta and its file."""
        for number in snapshot.dropped_segments:
            self.segments.pop(number, None)
        file = bytearray(bytes(snapshot.stream))
        self.stream_bytes, self.segment_bytes = len(file), 0
        parts = []
        for segment in snapshot.segments:
            now = read_memory(pid, segment.address, segment.bytes) if segment.bytes else b""
            before = b"" if segment.fresh else self.segments[segment.number]
            if not segment.fresh and len(before) != len(now):
                raise AssertionError(f"segment {segment.number} changed its size")
            if segment.fresh and segment.number in self.segments:
                raise AssertionError(f"segment {segment.number} is not fresh")
            patches = []
            step = len(now) if segment.fresh else CHUNK_BYTES
            for offset in range(0, len(now), step or 1):
                chunk = now[offset : offset + step]
                if segment.fresh or chunk != before[offset : offset + step]:
                    file += b"\0" * (-len(file) % 4096)
                    patches.append({"offset": offset, "source": {"offset": len(file), "bytes": len(chunk)}})
                    file += chunk
                    self.segment_bytes += len(chunk)
            self.segments[segment.number] = now
            if patches or segment.fresh:
                parts.append({"number": segment.number, "bytes": len(now), "fresh": segment.fresh, "patches": patches})
        delta = {
            "messages": snapshot.messages,
            "stream": {"offset": 0, "bytes": len(snapshot.stream)},
            "segments": parts,
            "dropped_segments": snapshot.dropped_segments,
        }
        return delta, sealed_file(bytes(file))


def sealed_file(content: bytes) -> int:
    descriptor = os.memfd_create("state", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, content)
    fcntl.fcntl(descriptor, 1033, _SEALS)  # F_ADD_SEALS
    return descriptor


class Pair:
    """A notebook and its session.

    With `all_deferred`, the bytes of all memory that may be deferred are, until before the next ordinary cell.
    """

    def __init__(self, all_deferred: bool = False) -> None:
        self.all_deferred = all_deferred
        self.follow_ups: list[int] = []  # the bytes of each deferred state
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.namespace["__builtins__"] = __builtins__
        self.wire = Wire()
        self.table = Table(self.namespace)
        self.left: dict[str, str] = {}
        self.read_again: set[int] = set()  # known memory of which the session's last message tells what has changed
        mine, theirs = socket.socketpair()
        self._socket = mine
        socket.send_fds(zygote().control, [b"!"], [theirs.fileno(), 1, 2])
        theirs.close()
        self.process = psutil.Process(self._call((os.getcwd(), dict(os.environ))))

    def local(self, code: str) -> None:
        """Runs an ordinary cell."""
        self.receive_deferred()
        exec(compile(code, "<notebook>", "exec"), self.namespace)

    def remote(
        self, code: str, *names: str, deleted: tuple[str, ...] = (), certain: frozenset[str] | None = None
    ) -> Any:
        """Runs a `%%gpu` cell that needs these names; all names that the session knows are returned."""
        snapshot = self.table.snapshot(names, certain=certain, extra=code, deleted=deleted)
        return self._finish(self._send("apply", snapshot))

    def unsent(self, *names: str) -> None:
        """Begins a `%%gpu` cell that needs these names, and ends it before any session has received its message."""
        self.table.snapshot(names, extra="raise AssertionError")
        self.table.release()
        assert self.table.unsend()

    def receive_deferred(self) -> None:
        """Receives the deferred state of the last `%%gpu` cells."""
        if self.table.deferred.numbers:
            delta, descriptor = self.wire.carry(Snapshot(*self._call(("deferred", None))), self.process.pid)
            self.follow_ups.append(self.wire.segment_bytes)
            try:
                self.table.complete(delta, descriptor)
            finally:
                os.close(descriptor)

    def remote_in_parts(self, *parts: tuple[str, tuple[str, ...]]) -> Any:
        """Runs a `%%gpu` cell part by part, with more names before each part."""
        (code, names), *others = parts
        answer = self._send("apply" if not others else "begin", self.table.snapshot(names, extra=code))
        for number, (code, names) in enumerate(others, start=1):
            kind = "apply" if number == len(others) else "begin"
            answer = self._send(kind, self.table.supplement(names, extra=code))
        return self._finish(answer)

    def _send(self, kind: str, snapshot: Snapshot) -> Any:
        delta, descriptor = self.wire.carry(snapshot, os.getpid())
        delta["all_deferred"] = self.all_deferred
        self.table.release()
        self.up = (self.wire.stream_bytes, self.wire.segment_bytes)
        return self._call((kind, delta), descriptor)

    def _finish(self, answer: Any) -> Any:
        snapshot, self.left = Snapshot(*answer), answer[4]
        self.read_again = {segment.number for segment in snapshot.segments if not segment.fresh}
        delta, descriptor = self.wire.carry(snapshot, self.process.pid)
        self.down = (self.wire.stream_bytes, self.wire.segment_bytes)
        self._call(("release", None))
        try:
            return self.table.apply(delta, descriptor)
        finally:
            os.close(descriptor)

    def ask(self, expression: str) -> Any:
        """The value of an expression in the session."""
        return self._call(("ask", expression))

    def _call(self, request: Any, descriptor: int | None = None) -> Any:
        send(self._socket, request, descriptor)
        if descriptor is not None:
            os.close(descriptor)
        answer, _ = receive(self._socket)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def start_anew(self) -> None:
        """Starts with two new tables and empty namespaces, in the same two processes."""
        self.namespace = {"__name__": "__main__", "__builtins__": __builtins__}
        self.lose_session()

    def lose_session(self) -> None:
        """Rolls the notebook back to the last state that arrived completely; both tables are new."""
        self.table.roll_back()
        self.wire, self.table, self.left = Wire(), Table(self.namespace), {}
        self._call(("start anew", None))

    def close(self) -> None:
        self._socket.close()
        self.process.wait(120)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Zygote:
    """A process that has imported this module and nothing else, and forks sessions: a start takes 0.2 s longer."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    """It ends when this is closed."""


@functools.cache
def zygote() -> Zygote:
    mine, theirs = socket.socketpair()
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # another torch, for example
    path = os.pathsep.join([str(_FOLDER.parent), str(_FOLDER), *filter(None, inherited)])
    command = [sys.executable, "-c", "import harness, sys; harness.fork_sessions(int(sys.argv[1]))"]
    descriptor = theirs.fileno()
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen([*command, str(descriptor)], env=environment, pass_fds=[descriptor])
    theirs.close()
    return Zygote(process, mine)


def fork_sessions(descriptor: int) -> None:
    """Forks a session for each connection that arrives with its standard output and error."""
    control = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps ended children
    while descriptors := socket.recv_fds(control, 1, 3)[1]:
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection, *streams = descriptors
            for number, stream in enumerate(streams, start=1):
                os.dup2(stream, number)
                os.close(stream)
            serve(socket.socket(fileno=connection))
            return
        for each in descriptors:
            os.close(each)


def send(to: socket.socket, message: Any, descriptor: int | None = None) -> None:
    data = pickle.dumps(message)
    head = _LENGTH.pack(len(data))
    if descriptor is None:
        to.sendall(head)
    else:
        socket.send_fds(to, [head], [descriptor])
    to.sendall(data)


def receive(source: socket.socket) -> tuple[Any, int | None]:
    head, descriptors, _, _ = socket.recv_fds(source, 8, 1)
    if not head:
        raise EOFError
    (size,) = _LENGTH.unpack(head)
    data = bytearray()
    while len(data) < size:
        piece = source.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return pickle.loads(data), descriptors[0] if descriptors else None


def serve(connection: socket.socket) -> None:
    """The session: applies a message, runs the cell, sends every name back."""
    (folder, environment), _ = receive(connection)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    send(connection, os.getpid())
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    namespace = vars(main)
    namespace["__builtins__"] = __builtins__
    own = set(namespace)
    table = Table(namespace)
    SWITCH.begin(session=True)
    begun, before, error = False, own, None
    while True:
        try:
            (kind, argument), file = receive(connection)
        except EOFError:
            return
        try:
            answer: Any = None
            if kind in ("begin", "apply"):
                assert file is not None
                cell = table.apply(argument, file, keeps_bound=begun)
                budget = Budget(0, 0) if argument["all_deferred"] else None
                os.close(file)
                before = before | set(namespace) if begun else set(namespace)
                begun, error = kind == "begin", None
                try:
                    exec(compile(str(cell), "<session>", "exec"), namespace)
                except Exception as raised:
                    error = raised
            if kind == "apply":
                names = set(namespace) - own
                gone = before - set(namespace)
                snapshot = table.snapshot(sorted(names), extra={"error": error}, deleted=gone, budget=budget)
                answer = as_answer(snapshot)
            elif kind == "deferred":
                answer = as_answer(table.snapshot_deferred())
            elif kind == "ask":
                answer = eval(argument, namespace)
            elif kind == "release":
                table.release()
            elif kind == "start anew":
                for name in set(namespace) - own:
                    del namespace[name]
                table = Table(namespace)
        except Exception as raised:
            import traceback

            raised.add_note("".join(traceback.format_exception(raised)))
            answer = raised
        try:
            send(connection, answer)
        except Exception:
            send(connection, RuntimeError(repr(answer)))


def as_answer(snapshot: Snapshot) -> tuple[Any, ...]:
    whole = replace(snapshot, stream=Stream([bytes(snapshot.stream)]))
    return tuple(vars(whole).values())


__all__ = ["Pair", "Refused", "Wire", "read_memory", "sealed_file", "serve"]
