"""Memory whose bytes stay in the session when a cell ends, and arrive later.

A session's message may leave out the bytes of segments. The notebook then has the objects, with their shapes and
identities; their memory is zeros, or as it was before the cell. `Table.snapshot_deferred` sends the bytes, and counts
as a message of its own. Until that is applied, the segment belongs to the session: the notebook sends nothing of it.

Memory that is read while the message is decoded cannot be left out. So objects that are built or updated by code of a
library or of the student have all memory that they reach in the message. Received memory that has not been written to
since is the same at both ends: it is neither left out nor read again. This cannot be known of GPU memory, because CuPy,
Triton and `.data` bypass torch's counting of writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple

from baton_shim.state.delta import Undo, write_segments
from baton_shim.state.kinds import Kinds
from baton_shim.state.kinds.tensors import on_gpu
from baton_shim.state.message import SegmentView, Snapshot, Stream
from baton_shim.state.numbering import Numbering
from baton_shim.state.refusal import TableBroken
from baton_shim.state.segments import Segment, Segments
from baton_shim.state.untouched import is_untouched
from baton_shim.state.views import Views
from baton_shim.state.walk import Walker

GPU_BYTES = 64 << 10  # for less, a second message does not pay off
BUDGET_BYTES = 16 << 20  # of other memory, which delays the cell by an eighth of a second over a link of 1 Gbit/s


class Budget(NamedTuple):
    """How much memory is returned with the cell."""

    gpu_bytes: int = GPU_BYTES
    """A larger segment on the GPU is deferred."""
    other_bytes: int = BUDGET_BYTES
    """The limit for all other segments together."""


class Deferred:
    """The deferred segments of one table, on either end."""

    def __init__(
        self,
        namespace: Mapping[str, Any],
        segments: Segments,
        views: Views,
        numbering: Numbering,
        kinds: Kinds,
        walker: Walker,
    ) -> None:
        self._namespace = namespace
        self._segments, self._views, self._numbering = segments, views, numbering
        self._kinds, self._walker = kinds, walker
        self.numbers: set[int] = set()
        self._unsent: frozenset[int] = frozenset()  # those of `numbers` that have never been sent
        self._before: set[int] = set()
        self._untouched: set[int] = set()  # those in reach that the notebook has as they are
        self._messages = 0  # in the notebook: the number of the message that the deferred bytes continue
        self._kept: list[Undo] = []  # for each message since the first whose bytes have not all arrived

    def bytes(self) -> int:
        return sum(size for _, size in self.sizes())

    def sizes(self) -> tuple[tuple[int, int], ...]:
        return tuple((number, self._segments.by_number[number].bytes) for number in sorted(self._living()))

    def _living(self) -> set[int]:
        return self.numbers & self._segments.by_number.keys()

    # ---- in the session ----

    def choose(self, in_reach: Set[int], reached: Set[int], dying: Iterable[int], budget: Budget | None) -> None:
        """Chooses memory in reach that is left out, besides what was left out before.

        `reached`: the objects of the message. `dying`: those that are dropped with it, so they cannot be deferred.
        """
        # A segment without users is either sent with this message or has been freed.
        self._before = {number for number in self._living() if self._segments.by_number[number].users}
        self._untouched = set()
        if budget is None:
            self.numbers = set()
            return
        last = {self._views.segment_of[number] for number in dying if number in self._views.segment_of}
        self.numbers = (self._before | self._chosen(in_reach - self._before, reached, budget)) - last

    def views(self, in_reach: Set[int], fresh: Iterable[int]) -> list[SegmentView]:
        """The memory that is sent with the message."""
        new = self._unsent.union(fresh)
        views = self._views.look((in_reach | self._before) - self.numbers - self._untouched, new)
        self._unsent = new & self.numbers
        return views

    def snapshot(self, messages: int) -> Snapshot:
        return Snapshot(messages, Stream([]), self._views.look(self._living(), self._unsent), [])

    def clear(self) -> None:
        """The notebook has everything that was deferred."""
        self.numbers, self._unsent = set(), frozenset()

    # ---- in the notebook ----

    def expect(self, sizes: Iterable[tuple[int, int]], undo: Undo) -> None:
        """Called before a message is decoded."""
        for number, size in sizes:
            if number not in self._segments.by_number:
                undo.received(number)
                self._segments.expect(number, size)

    def applied(self, sizes: Iterable[tuple[int, int]], undo: Undo, messages: int) -> None:
        """Keeps the undo of a message until everything that it left out has arrived."""
        self._messages = messages
        self.numbers = {number for number, _ in sizes}
        if self.numbers:
            self._kept.append(undo)
        else:
            self.forget()

    def arrive(self, delta: Mapping[str, Any], file_descriptor: int) -> None:
        if not self.numbers or delta["messages"] != self._messages:
            raise TableBroken("Received deferred bytes that nothing waits for")
        last = self._kept[-1]
        write_segments(delta, file_descriptor, self._segments, self.numbers, last)
        last.segments |= self.numbers
        self.forget()

    def forget(self) -> None:
        self.numbers = set()
        self._kept = []

    def may_be_unchanged(self) -> bool:
        """Whether no message shows a change of a variable, and only GPU memory is missing, which is always deferred."""
        away = (self._segments.by_number[number] for number in self._living())
        return not self.names(self._kept) and all(map(self._on_gpu, away))

    def names(self, undos: Iterable[Undo] | None = None) -> list[str]:
        """Names that an undo would affect: names that the messages bound or deleted, and names whose objects they
        changed.

        Names that begin with an underscore are not included. `undos`: those of the messages; by default, of all
        messages whose bytes have not all arrived.
        """
        segments, objects = set(self.numbers) if undos is None else set(), self._numbering.objects
        names: set[str] = set()
        patched: set[int] = set()
        for undo in self._kept if undos is None else undos:
            segments |= undo.segments
            names |= undo.names(self._namespace)
            patched |= undo.identities()
        unchanged: set[int] = set()

        def is_changed(number: int) -> bool:
            waiting, seen = [number], set()
            while waiting:
                number = waiting.pop()
                if number < self._numbering.anchors:  # the same at both ends, and without a state
                    continue
                if id(objects[number]) in patched or self._views.segment_of.get(number) in segments:
                    return True
                if number not in seen and number not in unchanged:
                    seen.add(number)
                    waiting += self._walker.children_of(number)
            unchanged.update(seen)
            return False

        for name, value in tuple(self._namespace.items()):  # a thread may bind names meanwhile
            number = self._numbering.number(value)
            if number is not None and is_changed(number):
                names.add(name)
        return sorted(name for name in names if not name.startswith("_"))

    def kept_bytes(self) -> int:
        """The approximate memory that is kept for an undo."""
        return sum(undo.kept_bytes() for undo in self._kept)

    def roll_back(self) -> None:
        for undo in reversed(self._kept):
            undo.run()
        self.forget()

    # ---- which memory ----

    def _chosen(self, in_reach: Set[int], reached: Set[int], budget: Budget) -> set[int]:
        """The segments that are deferred; `reached` are the objects of the message."""
        segments = [self._segments.by_number[number] for number in sorted(in_reach)]
        on_gpu = {segment.number for segment in segments if self._on_gpu(segment)}
        chosen = [segment for segment in segments if segment.number in on_gpu and segment.bytes > budget.gpu_bytes]
        others = [segment for segment in segments if segment.number not in on_gpu]
        # The worker asks the system, too, and faster. So it is asked here only if some of the memory may be deferred.
        if sum(segment.bytes for segment in others) > budget.other_bytes:
            others = self._touched(others)
        chosen = self._touched(chosen)
        left = sum(segment.bytes for segment in others)
        for segment in sorted(others, key=lambda segment: -segment.bytes):
            if left <= budget.other_bytes:
                break
            left -= segment.bytes
            chosen.append(segment)
        numbers = {segment.number for segment in chosen if segment.users}
        return numbers and numbers - self._read_by_others(reached)

    def _touched(self, segments: list[Segment]) -> list[Segment]:
        self._untouched |= {segment.number for segment in segments if is_untouched(segment)}
        return [segment for segment in segments if segment.number not in self._untouched]

    def _on_gpu(self, segment: Segment) -> bool:
        tensor, objects = self._kinds.tensor, self._numbering.objects
        users = (objects[number] for number in segment.users)
        return segment.device is not None or any(self._kinds.of(user) is tensor and on_gpu(user) for user in users)

    def _read_by_others(self, reached: Set[int]) -> set[int]:
        """Segments that code other than the table's own may read while the message is decoded."""
        objects, kinds, dropped = self._numbering.objects, self._kinds, self._numbering.dropped
        waiting = [n for n in reached if n not in dropped and not kinds.of(objects[n]).is_blind(objects[n])]
        waiting += self._unnamed_views(reached)
        seen: set[int] = set()
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                waiting += self._walker.children_of(number)
        return {segment for number, segment in self._views.segment_of.items() if number in seen}

    def _unnamed_views(self, reached: Set[int]) -> set[int]:
        """Views that no name leads to, so they are part of a reduced form, which is rebuilt during decoding."""
        objects, kinds, walker = self._numbering.objects, self._kinds, self._walker
        named = (self._numbering.number(value) for value in tuple(self._namespace.values()))
        waiting = [number for number in named if number in reached]
        held: set[int | None] = set()
        while waiting:
            number = waiting.pop()
            if number is not None and number not in held:
                held.add(number)
                if number in walker.states or not kinds.of(objects[number]).changes:
                    waiting += walker.children_of(number)
        return self._views.segment_of.keys() - held
