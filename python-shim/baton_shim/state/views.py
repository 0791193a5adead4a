"""Which objects of a table are views of which segment, and which memory a message has to include.

**Invariant:** a segment is known as long as an object of the table is a view of it. Within a message, one view may
replace the last other one, so a segment is dropped only when all of the message's views are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Set
from itertools import starmap
from typing import Any

from baton_shim.state.kinds import Here, Kinds
from baton_shim.state.message import SegmentView
from baton_shim.state.numbering import Numbering
from baton_shim.state.overlap import Range, United, unite
from baton_shim.state.scanner import look
from baton_shim.state.segments import Segment


class Views:
    """Which segment each array, tensor and buffer of one table uses."""

    def __init__(self, here: Here, kinds: Kinds, numbering: Numbering) -> None:
        self._here, self._kinds, self._numbering = here, kinds, numbering
        self._segments = here.segments
        self.segment_of: dict[int, int] = {}
        self._left: set[int] = set()  # segments that a view has left, perhaps the last one
        self._dropped: list[int] = []  # segments that the other end does not know to be dropped

    def user_of(self, segment: Segment) -> Any:
        """An object that keeps the segment's memory alive; None if all of its users have other memory now."""
        users: Iterable[Any] = map(self._numbering.objects.__getitem__, segment.users)
        if not segment.users:
            users = (obj for obj, number in self._here.used if number == segment.number)
        return next((user for user in users if self._kinds.of(user).is_view_of(user, segment)), None)

    def note_used(self) -> None:
        """Records the views that a message has found, now that all of its objects have numbers."""
        for obj, segment in self._here.used:
            number = self._numbering.number(obj)
            if number is not None:
                self._move_to(number, segment)
        self._here.forget_message()

    def find_moved(self, numbers: Iterable[int]) -> None:
        """Updated tensors may have other memory now, or memory for the first time."""
        for number in numbers:
            obj = self._numbering.objects[number]
            if self._kinds.of(obj) is self._kinds.tensor:
                segment = self._kinds.tensor.segment_number(obj)
                if segment is not None:
                    self._move_to(number, segment)
                else:
                    self.leave(number)

    def hide(self, replaced: Set[int]) -> list[Segment]:
        """Hides segments that only replaced objects use: a resized array may now be at the same address."""
        numbers = {self.segment_of[number] for number in replaced if number in self.segment_of}
        hidden = [self._segments.by_number[number] for number in numbers]
        hidden = [segment for segment in hidden if segment.users <= replaced]
        for segment in hidden:
            self._segments.hide(segment)
        return hidden

    def unite(self, views: Iterable[Any], may_grow: Callable[[Segment], bool]) -> United:
        """Adds segments for memory of these objects that overlaps only partly. Perhaps none uses such a segment.

        Hides those that are parts of these.
        """

        def memory(obj: Any) -> tuple[int, int] | None:
            try:
                return self._kinds.of(obj).memory(obj)
            except Exception:  # the pickler will get the same error, and write a stand-in
                return None

        ranges = (found for obj in views if (found := memory(obj)) is not None)
        united = unite(starmap(Range, ranges), self._segments, may_grow)
        for segment in united.outgrown:
            self._segments.hide(segment)
        return united

    def users(self, segments: Iterable[Segment]) -> tuple[set[int], set[int]]:
        """The objects that are views of these: tensors, which can get other memory, and others, which cannot."""
        users = {number for segment in segments for number in segment.users}
        objects, kinds = self._numbering.objects, self._kinds
        tensors = {number for number in users if kinds.of(objects[number]) is kinds.tensor}
        return tensors, users - tensors

    def _move_to(self, number: int, segment: int) -> None:
        before = self.segment_of.get(number)
        if before != segment:
            self.leave(number)
            self.segment_of[number] = segment
            self._segments.by_number[segment].users.add(number)

    def leave(self, number: int) -> None:
        """The object is no longer a view of its segment."""
        segment = self._segments.by_number.get(self.segment_of.pop(number, -1))
        if segment is not None:
            segment.users.discard(number)
            self._left.add(segment.number)

    def just_left(self) -> list[Segment]:
        """Segments that a view has left within this message, and whose memory is still there.

        The view may have written to it before, and views that were not sent still show it.
        """
        left = [self._segments.by_number[number] for number in self._left & self._segments.by_number.keys()]
        return [one for one in left if one.keeps_memory() and self._segments.is_there(one)]

    def drop_unused(self) -> None:
        """Drops segments that their last view has left."""
        for number in sorted(self._left & self._segments.by_number.keys()):
            if not self._segments.by_number[number].users:
                self._segments.drop((number,))
                self._dropped.append(number)
        self._left.clear()

    def take_dropped(self) -> list[int]:
        dropped, self._dropped = self._dropped, []
        return dropped

    def drop_segments(self, numbers: Iterable[int]) -> None:
        """Drops segments that the other end has dropped."""
        for number in numbers:
            segment = self._segments.by_number.get(number)
            for user in tuple(segment.users) if segment is not None else ():
                self.segment_of.pop(user, None)
            self._segments.drop((number,))
        sent = set(numbers)
        self._dropped = [number for number in self._dropped if number not in sent]

    def in_reach(self, reached: Set[int], given: Set[int]) -> set[int]:
        """The segments of objects that a message updates, except those that belong to the other end."""
        segments = {segment for number, segment in self.segment_of.items() if number in reached}
        if given:
            segments -= {segment for number, segment in self.segment_of.items() if number in given}
        return segments

    def resized(self) -> list[Any]:
        """Objects that have left their memory, perhaps because something resized it that no message visits."""
        segments, objects = self._segments, self._numbering.objects
        left = [one for one in segments.by_number.values() if one.users and not segments.is_there(one)]
        return [objects[number] for segment in left for number in segment.users]

    def look(self, numbers: Iterable[int], fresh: Container[int]) -> list[SegmentView]:
        """These segments as they are now; `fresh`: those of which the other end has nothing.

        A tensor that is larger than its memory cannot be sent, and the memory that it had has been freed.
        """
        segments = [self._segments.by_number[number] for number in sorted(numbers)]
        segments = [segment for segment in segments if self._segments.is_there(segment)]
        known = [segment for segment in segments if segment.number not in fresh]
        for segment in known:
            self._segments.copy_from_gpu(segment)
        seen = look(known)
        return [
            SegmentView(one.number, one.address, one.bytes, one.number in fresh, seen.get(one.number))
            for one in segments
        ]

    def known(self) -> tuple[dict[int, int], list[int]]:
        return dict(self.segment_of), list(self._dropped)

    def put_back(self, segment_of: dict[int, int], dropped: list[int]) -> None:
        """Returns to what was `known`. The segments are known again."""
        self.segment_of, self._dropped = segment_of, dropped
        self._left.clear()
        for segment in self._segments.by_number.values():
            segment.users.clear()
        for number, segment_number in segment_of.items():
            self._segments.by_number[segment_number].users.add(number)

    def move(self, moved: dict[int, int]) -> None:
        """Applies the new numbers of a compacted table."""
        self.segment_of = {moved[number]: segment for number, segment in self.segment_of.items()}
        for segment in self._segments.by_number.values():
            segment.users = {moved[number] for number in segment.users}
