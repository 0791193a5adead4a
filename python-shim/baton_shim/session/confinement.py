"""Restricts a session's process.

A fork of a zygote enters a sandbox that bubblewrap has built. It gets the restrictions of a process in that sandbox:
its namespaces, no capabilities, no way to gain rights, and the same filter of system calls. Without bubblewrap, any
session confines itself with Landlock rules and a filter that the worker has made.

**Invariant:** a process restricted here can do nothing that a process started by bubblewrap in the same sandbox could
not do. Without bubblewrap, it can do only what the rules and the filter allow.
"""

from __future__ import annotations

import array
import ctypes
import os
import platform
import socket
import sys
from typing import Any

CONFINEMENT = "BATON_CONFINEMENT"
"""The variable that says how a session confines itself. Its value is `INSIDE`, or, under Landlock,
`RULES:FILTER:FOLDER`: the descriptors of the rules and of the filter, and the session's folder."""
INSIDE = "inside"
"""The value for a session in a sandbox of bubblewrap."""

_LIBC: Any = ctypes.CDLL(None, use_errno=True)
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 22, 24, 38
_PR_SET_CHILD_SUBREAPER, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 36, 47, 4
_SECCOMP_MODE_FILTER, _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER = 2, 1, 8
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_VERSION, _LANDLOCK_PATH_BENEATH = 1, 1
_LANDLOCK_EVERY_SCOPE = 0b11
_LANDLOCK_FOLDERS = (1 << 14) - 1
"""All rights to files and folders that Landlock's version 2 has."""
_LANDLOCK_TRUNCATE = 1 << 14
_LANDLOCK_FILE = 0b111 | _LANDLOCK_TRUNCATE
"""The rights to a file: execute, write, read and truncate."""
_CAPABILITIES_VERSION = 0x20080522
_INSTRUCTION_BYTES = 8


class _Rules(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def adopt_orphans() -> None:
    """Makes descendants of this process its children when their parents end."""
    _call(_LIBC.prctl, _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def enter(process: int, namespaces: int) -> None:
    """Enters namespaces of another process, and continues in a child, because only a child is in its process namespace.

    `process`: a descriptor of that process. `namespaces`: which ones, as `setns` takes them. Call this after joining
    the control groups, because they become the root of the control group namespace.
    """
    _call(_LIBC.setns, process, namespaces)
    if os.fork():
        os._exit(0)


def give_up_rights() -> None:
    """Gives up all capabilities, and the possibility to gain rights, for this process and everything that it starts."""
    _call(_LIBC.prctl, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    capability = 0
    while _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    _call(_LIBC.capset, header, (ctypes.c_uint32 * 6)())
    _call(_LIBC.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def filter_calls(program: bytes) -> None:
    """Installs a filter of system calls. `program`: classic BPF, in the system's binary form."""
    _call(_LIBC.prctl, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(_program(program)), 0, 0)


def confine() -> None:
    """Confines this process and everything that it starts, as the variable `CONFINEMENT` says.

    Under Landlock it then changes to the session's folder. Without the variable, it does nothing.
    """
    prepared = os.environ.pop(CONFINEMENT, None)
    if prepared is None:
        return
    if prepared == INSIDE:
        stay_inside()
        return
    rules, program, folder = prepared.split(":", 2)
    give_up_rights()
    _call(_LIBC.syscall, _LANDLOCK_RESTRICT_SELF, int(rules), 0)
    filter_calls(os.pread(int(program), os.fstat(int(program)).st_size, 0))
    os.close(int(rules))
    os.close(int(program))
    if "tempfile" in sys.modules:
        import tempfile

        tempfile.tempdir = None  # the zygote's temporary folder may be another one
    os.chdir(folder)


def stay_inside() -> None:
    """Adds a second layer to a sandbox, with Landlock. If the system has no suitable Landlock, does nothing.

    Then no file outside the sandbox's root can be opened, even through a descriptor of an outer folder. With Linux
    6.12, the process also cannot connect to abstract sockets of processes outside its Landlock domain, or signal them.
    """
    version = _LIBC.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)
    if version < 2:  # version 1 does not allow moving a file into another folder
        return
    files = _LANDLOCK_FOLDERS | (_LANDLOCK_TRUNCATE if version >= 3 else 0)
    rules = _Rules(files, 0, _LANDLOCK_EVERY_SCOPE if version >= 6 else 0)
    ruleset = _call(_LIBC.syscall, _LANDLOCK_CREATE_RULESET, ctypes.byref(rules), ctypes.sizeof(rules), 0)
    # A fork's program is that of its zygote, which is outside the sandbox's root.
    for path, allowed in (("/", files), ("/proc/self/exe", files & _LANDLOCK_FILE)):
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        beneath = _Beneath(allowed, parent)
        _call(_LIBC.syscall, _LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_PATH_BENEATH, ctypes.byref(beneath), 0)
        os.close(parent)
    _call(_LIBC.syscall, _LANDLOCK_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def let_worker_watch(program: bytes, connection: int) -> None:
    """Installs a filter that lets system calls wait for the worker, and sends its listener over the connection.

    If the system does not allow such a filter, the process continues without it, and the worker sees the connection
    close.
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
    """Changes a variable in `/proc/self/environ`, which shows the environment with which the zygote was started.

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
