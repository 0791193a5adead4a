"""The process that replaces a proxy: `baton program`, a child of this program, which connects it with the broker.

It reads this program's memory, as a proxy reads a kernel's, and ends when the connection closes.

**Invariant:** however the two end, no process and no socket remains.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess

from baton_shim.base.binary import NOT_FOUND, find_binary
from baton_shim.base.interrupts import postponed
from baton_shim.base.link import Link, LinkClosed
from baton_shim.state import scanner
from baton_shim.state.errors import GpuServiceError

START_SECONDS = 20.0
END_SECONDS = 3.0
_PR_SET_PTRACER = 0x59616D61
NOT_STARTED = "Baton's helper process, which connects this program with the GPU machines, did not start"


class Helper:
    """A running helper. Raises GpuServiceError if it does not start."""

    def __init__(self, folder: str, name: str, kind: str | None = None) -> None:
        """`folder`: the initial working directory. `name`: the program's, for people. `kind`: that of all its jobs."""
        binary = find_binary()
        if binary is None:
            raise GpuServiceError(*NOT_FOUND)
        self._private_folder: str | None = None
        own, other = socket.socketpair()
        with postponed(), other:
            try:
                self._process = subprocess.Popen(
                    [binary, "program", f"--name={name}", *([f"--kind={kind}"] if kind else [])],
                    stdin=other.fileno(),
                    stdout=subprocess.DEVNULL,
                    cwd=folder if os.path.isdir(folder) else None,
                    process_group=0,  # interrupts and stops from the terminal are meant for this program only
                )
            except OSError as error:
                own.close()
                raise GpuServiceError(f"{NOT_STARTED} ({error.strerror}: {binary})", "check BATON_BINARY") from None
        reads_memory = kind is None  # lanes send copies
        if reads_memory:
            allow_to_read(self._process.pid)
        self.link = Link(own)
        try:
            self._ready(reads_memory=reads_memory)
        except BaseException:
            self.close()
            raise

    def _ready(self, *, reads_memory: bool) -> None:
        try:
            message = self.link.receive(timeout=START_SECONDS)
        except LinkClosed:
            message = None
        if message is None or message.name != "ready":
            raise GpuServiceError(NOT_STARTED, "run `baton doctor` in a terminal")
        self._private_folder = message.body["folder"]
        if reads_memory:
            scanner.use(message.body["scanner"])

    @property
    def is_running(self) -> bool:
        return not self.link.is_closed and self._process.poll() is None

    def close(self) -> None:
        """Lets the helper end its connection to the broker."""
        self.link.hang_up()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._private_folder is not None and os.path.basename(self._private_folder).startswith("baton-program-"):
            shutil.rmtree(self._private_folder, ignore_errors=True)  # it still exists only if the helper was killed

    def forget(self) -> None:
        """Called in a fork of this program, because the helper serves the parent."""
        self.link.close()
        self._process.returncode = 0  # it is not a child of this process


def allow_to_read(pid: int) -> None:
    """Needed where Yama forbids children to read their parent's memory."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, pid, 0, 0, 0)
