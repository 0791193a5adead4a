"""This kernel's own scan of its memory: the XXH3-128 of each block of a segment, with a library that Baton provides.

It takes a third of the time of reading the memory from another process. If the system tracks writes (`watch.py`), only
what was written to is scanned again. If the library cannot be loaded, the process that packs the snapshot scans.

**Invariant:** a digest is that of the block's current bytes, unless the block is being written to.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from array import array
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from baton_shim.state import memory
from baton_shim.state.segments import Segment
from baton_shim.state.watch import Ranges, private_memory, watch

SCANNER = "BATON_SCANNER"
"""The path of the library."""
_BLOCK_BYTES = 4096
_DIGEST_BYTES = 16
_LEAST_BYTES = 256 << 10  # for less, a scan does not pay off
_BYTES_OF_A_THREAD = 8 << 20
_MOST_THREADS = 4
_CALM = 1 / 8  # share of blocks; if more change from cell to cell, all are scanned

Digest = Callable[[int, Any, int, int], int]
Runs = list[tuple[int, int]]
"""Ranges of blocks: the number of the first block, and the count."""


def use(path: str) -> None:
    """For a process whose environment did not name the library when it began."""
    if library() is None:
        library.cache_clear()
        _digest.cache_clear()
        os.environ[SCANNER] = path
        library()


@functools.cache
def library() -> ctypes.CDLL | None:
    path = os.environ.pop(SCANNER, None)
    if path is None:
        return None
    try:
        return ctypes.CDLL(path)
    except OSError:  # a folder from which code cannot be executed
        return None


@functools.cache
def _digest() -> Digest | None:
    digest: Any = getattr(library(), "baton_digests", None)
    if digest is None:
        return None
    place = ctypes.c_void_p
    digest.argtypes, digest.restype = (place, place, ctypes.c_size_t, place), ctypes.c_size_t
    return digest  # type: ignore[no-any-return]


class Seen:
    """The state of a segment at the last scan."""

    __slots__ = ("address", "blocks", "calm", "cold", "digests", "watched")

    def __init__(self, address: int, blocks: int) -> None:
        self.address, self.blocks = address, blocks
        self.digests = bytearray(blocks * _DIGEST_BYTES)  # of the complete blocks
        self.watched = False  # the system tracks writes
        self.calm = True  # few blocks change, so tracking writes is worth what it costs the writer
        self.cold = False  # most blocks that were reported as written to had not changed since the last scan


def look(segments: Iterable[Segment]) -> dict[int, Seen]:
    """The state of these segments, by number.

    Small segments are left out, and received pages, for which the system knows which were written to.
    """
    digest = _digest()
    if digest is None:
        return {}
    private = functools.cache(private_memory)  # requested at most once
    worth = [segment for segment in segments if segment.bytes >= _LEAST_BYTES and not segment.mapped]
    return {segment.number: _look_at(segment, digest, private) for segment in worth}


def _look_at(segment: Segment, digest: Digest, private: Callable[[], Ranges]) -> Seen:
    """Scans what was written to, if that is known; otherwise all of it."""
    watching = watch()
    seen: Seen | None = segment.seen
    if seen is None or seen.address != segment.address:
        seen = segment.seen = Seen(segment.address, segment.bytes // _BLOCK_BYTES)
    elif seen.watched and watching is not None:
        # Blocks that change from cell to cell remain writable: scanning them costs less than tracking writes again.
        written = watching.written(segment.address, segment.bytes, protect=seen.cold)
        if written is not None:
            runs = [_run(segment, seen, begin, end) for begin, end in written]
            looked_at = sum(count for _, count in runs)
            seen.cold = 2 * _digest_runs(digest, segment, seen, runs, looked_at) < looked_at
            seen.calm = seen.watched = looked_at <= seen.blocks * _CALM
            if not seen.watched:
                watching.end(segment.address, segment.bytes)
            return seen
        seen.watched = False
    if seen.calm and watching is not None:  # before anything is read
        seen.watched = watching.begin(segment.address, segment.bytes, private())
    share = -(-seen.blocks // _MOST_THREADS)
    runs = [(first, min(share, seen.blocks - first)) for first in range(0, seen.blocks, share)]
    changed = _digest_runs(digest, segment, seen, runs, seen.blocks)
    seen.calm = seen.watched or changed <= seen.blocks * _CALM
    return seen


def _run(segment: Segment, seen: Seen, begin: int, end: int) -> tuple[int, int]:
    """The blocks that overlap this range."""
    first = max(0, begin - segment.address) // _BLOCK_BYTES
    last = min(seen.blocks, -(-(end - segment.address) // _BLOCK_BYTES))
    return first, max(0, last - first)


def _digest_runs(digest: Digest, segment: Segment, seen: Seen, runs: Runs, blocks: int) -> int:
    """Digests all these blocks; returns how many differ from the last scan."""
    place = memory.address_of(seen.digests)
    threads = min(1 + blocks * _BLOCK_BYTES // _BYTES_OF_A_THREAD, _MOST_THREADS, len(os.sched_getaffinity(0)))
    changed: list[int] = []

    def work(number: int) -> None:
        mine = array("L", chain.from_iterable(runs[number::threads]))
        changed.append(digest(segment.address, mine.buffer_info()[0], len(mine) // 2, place))

    others = [threading.Thread(target=work, args=(number,), name="baton-scan") for number in range(1, threads)]
    for thread in others:
        thread.start()
    work(0)
    for thread in others:
        thread.join()
    return sum(changed)
