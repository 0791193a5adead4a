"""Received memory that was never written to here: its pages are still those of the file that it was mapped from.

The Rust side recognises such pages in the same way when it reads a snapshot (`crates/chunks/src/untouched.rs`).

**Invariant:** if unsure, memory counts as written to.
"""

from __future__ import annotations

import mmap
import os
from array import array

from baton_shim.state.segments import Segment

_PRESENT, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61  # see Linux's `pagemap.rst`
_ENTRY_BYTES = 8
_ENTRIES = 64 << 10  # entries read at once


def is_untouched(segment: Segment) -> bool:
    """For a segment on a GPU, only the copy could be checked, so it counts as written to."""
    if not segment.mapped or segment.memory is None or segment.device is not None or segment.address % mmap.PAGESIZE:
        return False
    first = segment.address // mmap.PAGESIZE
    end = -(-(segment.address + segment.bytes) // mmap.PAGESIZE)
    try:
        pages = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        for start in range(first, end, _ENTRIES):
            count = min(_ENTRIES, end - start)
            entries = array("Q", os.pread(pages, count * _ENTRY_BYTES, start * _ENTRY_BYTES))
            if len(entries) != count or any(map(_is_touched, set(entries))):
                return False
    except (OSError, ValueError):
        return False
    finally:
        os.close(pages)
    return True


def _is_touched(entry: int) -> bool:
    return bool(entry & (_PRESENT | _SWAPPED)) and not entry & _OF_FILE
