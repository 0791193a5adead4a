"""Memory that objects share only in part, such as that of `torch.from_numpy(a[:4])` and of `a`.

A segment is the whole memory of one owner, and its views share it. But a tensor shows only the part of an array that it
was made of. So before a message is written, ranges of memory that overlap become one segment.
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
    """What `unite` did."""

    added: list[Segment]
    """New segments, perhaps without a view."""
    former: list[Segment]
    """Segments that are part of those now; their views are to be sent again."""


def unite(ranges: Iterable[Range], segments: Segments, may_move: Callable[[Segment], bool]) -> United:
    """Adds a segment for each group of ranges that overlap each other or known segments.

    `may_move`: whether the views of a known segment can become views of another.
    """
    united = United([], [])
    for group in groups(sorted(set(ranges))):
        low, high = group[0].low, max(one.high for one in group)
        if segments.find(low, high - low) is not None:
            continue
        former: list[Segment] = []
        while found := [one for one in segments.overlapping(low, high) if may_move(one)]:
            low, high = min(low, found[0].address), max(high, *(one.address + one.bytes for one in found))
            former += found
            for one in found:
                segments.hide(one)
        if former or len(group) > 1:
            united.added.append(segments.add(low, high - low))
            united.former.extend(former)
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
