"""A process that preserves memory as it is now, while this process continues or ends.

It is a fork with only this memory, which takes additional room only where this process writes to it later. The worker
reads the memory from the keeper, and ends it.

**Invariant:** without a keeper nothing is lost, but the next cell has to wait until the memory has been read.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from array import array
from collections.abc import Iterable
from typing import Any

from baton_shim.state import memory, scanner
from baton_shim.state.message import SegmentView
from baton_shim.state.watch import Ranges

_PAGE = mmap.PAGESIZE
_NOWHERE = 1 << 64
_PLACE_BYTES = 1 << 20
"""The size of the list of ranges that a keeper unmaps: 65,536, the default limit of ranges in a process."""
_OF_THE_THREAD = 64 << 10
"""The memory around a thread's own record in which the system and the C library keep what each process needs."""


def keep(segments: Iterable[SegmentView]) -> int | None:
    """The process that keeps these segments. It is a child of this process's parent, the worker, and ends with it.

    None if the system does not allow it, or if other processes may write to the memory.
    """
    library, worker = scanner.library(), os.getppid()
    fork: Any = getattr(library, "baton_keep", None)
    ours = threading.current_thread() is threading.main_thread() and os.environ.get("JPY_PARENT_PID") == str(worker)
    if library is None or fork is None or not ours:
        return None
    fork.argtypes, fork.restype = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_ssize_t
    with mmap.mmap(-1, _PLACE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as place:
        buffer = ctypes.c_char.from_buffer(place)
        try:
            address = ctypes.addressof(buffer)
            dropped = _dropped(_merged(_memory_of(segments)), _own(address), str(library._name))
            if dropped is None or len(dropped) * dropped.itemsize > _PLACE_BYTES:
                return None
            ctypes.memmove(address, dropped.tobytes(), len(dropped) * dropped.itemsize)
            process: int = fork(worker, address, len(dropped) // 2)
        finally:
            del buffer
    return process if process > 0 else None


def _memory_of(segments: Iterable[SegmentView]) -> Ranges:
    found = []
    for segment in segments:
        found.append((segment.address, segment.address + segment.bytes))
        if segment.seen is not None:
            address = memory.address_of(segment.seen.digests)
            found.append((address, address + len(segment.seen.digests)))
    return found


def _own(place: int) -> Ranges:
    """The memory that the keeper itself needs, besides its stack and the library."""
    myself = ctypes.CDLL(None).pthread_self
    myself.restype = ctypes.c_void_p
    thread = myself() or 0
    return [(place, place + _PLACE_BYTES), (thread - _OF_THE_THREAD, thread + _OF_THE_THREAD)]


def _merged(ranges: Ranges) -> Ranges:
    """The ranges sorted, merged and extended to whole pages."""
    found: Ranges = []
    for begin, end in sorted((begin // _PAGE * _PAGE, -(-end // _PAGE) * _PAGE) for begin, end in ranges):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif end > begin:
            found.append((begin, end))
    return found


def _dropped(memory: Ranges, own: Ranges, library: str) -> array[int] | None:
    """Address and size of all other memory. None: another process may write to the memory that is to be kept."""
    shared, others = [], []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            place, permissions, _, _, _, *path = line.split(maxsplit=5)
            begin, end = (int(text, 16) for text in place.split("-"))
            name = path[0].rstrip("\n") if path else ""
            if permissions[3] != "p":
                shared.append((begin, end))
            if name not in ("[stack]", library) and not name.startswith("[v"):
                others.append((begin, end))
    if _without(shared, memory) != shared:
        return None
    dropped = _without(others, _merged([*memory, *own]))
    return array("L", (number for begin, end in dropped for number in (begin, end - begin)))


def _without(ranges: Ranges, kept: Ranges) -> Ranges:
    """The part of `ranges` outside `kept`; both are sorted."""
    found: Ranges = []
    waiting = iter([*kept, (_NOWHERE, _NOWHERE)])
    first, last = next(waiting)
    for begin, end in ranges:
        while begin < end:
            while last <= begin:
                first, last = next(waiting)
            if begin < first:
                found.append((begin, min(first, end)))
            begin = min(max(begin, last), end) if first < end else end
    return found
