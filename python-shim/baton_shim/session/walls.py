"""Lets a fork of a zygote enter a sandbox that bubblewrap has built.

Its restrictions are those of a process in that sandbox: its namespaces, no capabilities, no way to gain rights, and the
system call filter that bubblewrap was given.

**Invariant:** a process that returns from here can do nothing that a process started by bubblewrap there could not do.
"""

from __future__ import annotations

import array
import ctypes
import os
import platform
import socket
from typing import Any

_LIBC: Any = ctypes.CDLL(None, use_errno=True)
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 22, 24, 38
_PR_SET_CHILD_SUBREAPER, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 36, 47, 4
_SECCOMP_MODE_FILTER, _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER = 2, 1, 8
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_CAPABILITIES_VERSION = 0x20080522
_INSTRUCTION_BYTES = 8


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def adopt_orphans() -> None:
    """Makes processes whose parent ends children of this one."""
    _call(_LIBC.prctl, _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def enter(process: int, namespaces: int) -> None:
    """Enters the namespaces of the process behind the descriptor. Returns in a child, which is in all of them.

    Call it after joining the control groups, because the control group namespace begins with them.
    """
    _call(_LIBC.setns, process, namespaces)
    if os.fork():
        os._exit(0)


def give_up_rights() -> None:
    """For this process and everything that it starts."""
    _call(_LIBC.prctl, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    capability = 0
    while _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    _call(_LIBC.capset, header, (ctypes.c_uint32 * 6)())
    _call(_LIBC.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def filter_calls(program: bytes) -> None:
    """`program`: classic BPF, in the system's binary form."""
    _call(_LIBC.prctl, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(_program(program)), 0, 0)


def let_worker_watch(program: bytes, connection: int) -> None:
    """Lets system calls wait for the worker, which gets their listener over the connection.

    If the system does not allow it, the session runs without it, and the worker sees the connection close.
    """
    try:
        try:
            listener = _listen(program)
        except OSError:  # without administrator rights, filtering requires that no more rights can be gained
            _call(_LIBC.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            listener = _listen(program)
    except OSError:
        os.close(connection)
        return
    with socket.socket(fileno=connection) as to_worker:
        to_worker.sendmsg([b"!"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener]))])
    os.close(listener)


def _listen(program: bytes) -> int:
    flags = _SECCOMP_FILTER_FLAG_NEW_LISTENER
    number = _SECCOMP[platform.machine()]
    return _call(_LIBC.syscall, number, _SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(_program(program)))


def rename(variable: str, value: str) -> None:
    """Changes a variable also in `/proc`, which shows the environment with which the zygote was started.

    The zygote must have been started with a value of the same length.
    """
    _LIBC.getenv.restype = ctypes.c_void_p
    place = _LIBC.getenv(variable.encode())
    if not place or len(os.environ[variable]) != len(value):
        raise ValueError(f"{variable} has no room for its value")
    ctypes.memmove(place, value.encode(), len(value))


def _program(program: bytes) -> _Program:
    return _Program(len(program) // _INSTRUCTION_BYTES, program)


def _call(function: Any, *arguments: Any) -> int:
    result: int = function(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function.__name__}: {os.strerror(number)}")
    return result
