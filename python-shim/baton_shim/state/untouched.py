"""Received memory that was never written to here: its pages are still those of the file that it was mapped from.

The Rust side recognises such pages in the same way when it reads a snapshot (`crates/chunks/src/untouched.rs`).

**Invariant:** if unsure, memory counts as written to.
"""

from __future__ import annotations

import mmap
import os
import sys

from baton_shim.state.segments import Segment

_PRESENT, _SWAPPED, _OF_FILE = 1 << 7, 1 << 6, 1 << 5  # of an entry's highest byte, see Linux's `pagemap.rst`
_UNTOUCHED = bytes(byte for byte in range(256) if not byte & (_PRESENT | _SWAPPED) or byte & _OF_FILE)
_ENTRY_BYTES = 8
_HIGHEST = _ENTRY_BYTES - 1 if sys.byteorder == "little" else 0
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
            entries = os.pread(pages, count * _ENTRY_BYTES, start * _ENTRY_BYTES)
            touched = entries[_HIGHEST::_ENTRY_BYTES].translate(None, delete=_UNTOUCHED)
            if len(entries) != count * _ENTRY_BYTES or touched:
                return False
    except OSError:
        return False
    finally:
        os.close(pages)
    return True
