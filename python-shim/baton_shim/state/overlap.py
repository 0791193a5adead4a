"""Ranges of memory that overlap only partly, such as those of `torch.from_numpy(a[:4])` and `torch.from_numpy(a[2:])`.

A segment is the whole memory of one owner, and its views share it. But a tensor shows only the part of an array that it
was made of. So before a message is written, the ranges of its new views are compared: those that overlap become one
segment. If the notebook sends a view that extends beyond a known segment, a larger segment takes its place, and the
session's views of the known one get the memory of the larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from baton_shim.state.segments import Segment, Segments


class Range(NamedTuple):
    """Memory of this process from one address up to, but not including, another."""

    low: int
    high: int


class United(NamedTuple):
    """Segments that were added, and known ones that are parts of these."""

    added: list[Segment]
    outgrown: list[Segment]


def unite(ranges: Iterable[Range], segments: Segments, may_grow: Callable[[Segment], bool]) -> United:
    """Adds a segment for each group of ranges that overlap, unless a known segment contains all of them.

    A single range counts as a group if it extends beyond a known segment that `may_grow`.
    """
    united = United([], [])
    for group in groups(sorted(set(ranges))):
        low, high = group[0].low, max(one.high for one in group)
        if segments.find(low, high - low) is not None:
            continue
        outgrown = segments.overlapping(low, high)
        if not all(map(may_grow, outgrown)):
            outgrown = []
        if outgrown or len(group) > 1:
            low = min([low, *(one.address for one in outgrown)])
            high = max([high, *(one.end for one in outgrown)])
            united.added.append(segments.add(low, high - low))
            united.outgrown.extend(outgrown)
    return united


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
