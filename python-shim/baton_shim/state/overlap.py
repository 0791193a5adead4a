"""Ranges of memory that overlap only partly, such as those of `torch.from_numpy(a[:4])` and `torch.from_numpy(a[2:])`.

A segment is the whole memory of one owner, and its views share it. But a tensor shows only the part of an array that it
was made of. So before a message is written, the ranges of its new views are compared: those that overlap become one
segment. A known segment stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from baton_shim.state.segments import Segment, Segments


class Range(NamedTuple):
    """Memory of this process from one address up to, but not including, another."""

    low: int
    high: int


def unite(ranges: Iterable[Range], segments: Segments) -> list[Segment]:
    """Adds a segment for each group of ranges that overlap, unless a known segment contains all of them."""
    added = []
    for group in groups(sorted(set(ranges))):
        low, high = group[0].low, max(one.high for one in group)
        if len(group) > 1 and segments.find(low, high - low) is None:
            added.append(segments.add(low, high - low))
    return added


def groups(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Ascending ranges, divided where nothing overlaps."""
    group: list[Range] = []
    end = 0
    for one in ranges:
        if group and one.low >= end:
            yield group
            group = []
        group.append(one)
        end = max(end, one.high)
    if group:
        yield group
