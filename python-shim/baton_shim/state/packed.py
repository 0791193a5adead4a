"""A self-contained message as plain bytes, which can be applied repeatedly.

In: the first snapshot of a separate table. Out: what `Table.apply` of another new table takes.

**Invariant:** holds a copy, so its source may change.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, NamedTuple

from baton_shim.state import memory
from baton_shim.state.message import Snapshot
from baton_shim.state.table import Table


class Packed(NamedTuple):
    """A message without addresses, which other processes can read."""

    delta: dict[str, Any]
    """In the form of `protocol::shim::Delta`."""
    content: bytes
    """The content of its file."""


def packed(snapshot: Snapshot) -> Packed:
    parts: list[Any] = [bytes(snapshot.stream)]
    at = len(parts[0])
    segments = []
    for view in snapshot.segments:
        patches = []
        if view.bytes:
            gap = -at % mmap.PAGESIZE  # large segments are mapped in place
            parts += [bytes(gap), memory.at_address(view.address, view.bytes, None)]
            patches.append({"offset": 0, "source": {"offset": at + gap, "bytes": view.bytes}})
            at += gap + view.bytes
        segments.append({"number": view.number, "bytes": view.bytes, "fresh": True, "patches": patches})
    delta = {
        "messages": 0,
        "stream": {"offset": 0, "bytes": len(parts[0])},
        "segments": segments,
        "dropped_segments": [],
    }
    return Packed(delta, b"".join(parts))


class Unpacked:
    """A packed message whose file is in memory."""

    def __init__(self, whole: Packed) -> None:
        self._delta = whole.delta
        self._file = os.memfd_create("baton-whole", os.MFD_CLOEXEC)
        with memoryview(whole.content) as rest:
            written = 0
            while written < len(rest):
                written += os.write(self._file, rest[written:])

    def apply(self, table: Table, **options: Any) -> Any:
        """Applies it to a new table. The objects that it creates are private to that table."""
        return table.apply(self._delta, self._file, **options)

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Unpacked:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
