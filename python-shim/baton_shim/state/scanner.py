"""This kernel's own look at its memory: the XXH3-128 of each block of a segment, with a library that Baton brings.

It takes a third of the time that reading the memory from another process takes, and where the system notes what is
written to (`watch.py`), only that is looked at again. Where the library cannot be loaded, the process that packs the
snapshot looks for itself.

**Invariant:** a digest is that of the block's bytes as they are, or the block's writer is still at work.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

from baton_shim.state import memory
from baton_shim.state.segments import Segment
from baton_shim.state.watch import Ranges, private_memory, watch

_BLOCK_BYTES = 4096
_DIGEST_BYTES = 16
_LEAST_BYTES = 256 << 10  # for less, a look is not worth its costs
_BYTES_OF_A_THREAD = 8 << 20
_MOST_THREADS = 4
_CALM = 1 / 8  # of the blocks; where more change from cell to cell, all are looked at

Digest = Callable[[int, int, int], int]


@functools.cache
def _digest() -> Digest | None:
    path = os.environ.pop("BATON_SCANNER", None)
    if path is None:
        return None
    try:
        digest: Any = ctypes.CDLL(path).baton_digests
    except (OSError, AttributeError):  # a folder from which nothing may be executed
        return None
    digest.argtypes, digest.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p), ctypes.c_size_t
    return digest  # type: ignore[no-any-return]


class Seen:
    """How a segment was when it was last looked at."""

    __slots__ = ("address", "blocks", "calm", "digests", "watched")

    def __init__(self, address: int, blocks: int) -> None:
        self.address, self.blocks = address, blocks
        self.digests = bytearray(blocks * _DIGEST_BYTES)  # of the whole ones
        self.watched = False  # the system notes what is written to
        self.calm = True  # little of it changes, so that noting it is worth what it costs who writes


def look(segments: Iterable[Segment]) -> dict[int, Seen]:
    """How these segments are, by number.

    Not of small ones, nor of received pages, of which the system knows which were written to.
    """
    digest = _digest()
    if digest is None:
        return {}
    private = functools.cache(private_memory)  # asked for at most once
    worth = [segment for segment in segments if segment.bytes >= _LEAST_BYTES and not segment.mapped]
    return {segment.number: _look_at(segment, digest, private) for segment in worth}


def _look_at(segment: Segment, digest: Digest, private: Callable[[], Ranges]) -> Seen:
    """Looks at what was written to, where that is known, else at all of it."""
    watching = watch()
    seen: Seen | None = segment.seen
    if seen is None or seen.address != segment.address:
        seen = segment.seen = Seen(segment.address, segment.bytes // _BLOCK_BYTES)
    elif seen.watched and watching is not None:
        written = watching.written(segment.address, segment.bytes)
        if written is not None:
            changed = sum(_digest_range(digest, segment, seen, begin, end) for begin, end in written)
            seen.calm = seen.watched = changed <= seen.blocks * _CALM
            if not seen.watched:
                watching.end(segment.address, segment.bytes)
            return seen
        seen.watched = False
    if seen.calm and watching is not None:  # before anything is read
        seen.watched = watching.begin(segment.address, segment.bytes, private())
    changed = _in_threads(digest, segment, seen)
    seen.calm = seen.watched or changed <= seen.blocks * _CALM
    return seen


def _digest_range(digest: Digest, segment: Segment, seen: Seen, begin: int, end: int) -> int:
    """The blocks that lie in this range, also in part; how many."""
    first = max(0, begin - segment.address) // _BLOCK_BYTES
    last = min(seen.blocks, -(-(end - segment.address) // _BLOCK_BYTES))
    if first >= last:
        return 0
    place = memory.address_of(seen.digests) + first * _DIGEST_BYTES
    digest(segment.address + first * _BLOCK_BYTES, last - first, place)
    return last - first


def _in_threads(digest: Digest, segment: Segment, seen: Seen) -> int:
    """All blocks; how many differ from what was seen before."""
    blocks, place = seen.blocks, memory.address_of(seen.digests)
    threads = min(-(-segment.bytes // _BYTES_OF_A_THREAD), _MOST_THREADS, len(os.sched_getaffinity(0)))
    share = -(-blocks // threads)
    changed: list[int] = []

    def work(first: int) -> None:
        count = min(share, blocks - first)
        changed.append(digest(segment.address + first * _BLOCK_BYTES, count, place + first * _DIGEST_BYTES))

    others = [threading.Thread(target=work, args=(first,), name="baton-scan") for first in range(share, blocks, share)]
    for thread in others:
        thread.start()
    work(0)
    for thread in others:
        thread.join()
    return sum(changed)
