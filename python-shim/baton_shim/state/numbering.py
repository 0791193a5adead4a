"""The numbers of the objects that both ends know.

After a dump, the C pickler's memo is `{id: (number, object)}`; after a load, the C unpickler's is `{number: object}`;
and both count alike. So a pickler that starts with the table as its memo writes a known object as a reference, and
an unpickler that starts with it reads the reference as this end's own object.

Three properties of CPython need care:

* The pickler uses the *size* of its memo as the next number. So the memo has exactly one entry for each number; a
  number whose object is gone, or is an object that already has a number, gets a dummy.
* A dict assigned to `Unpickler.memo` is lost (or crashes the process). So the memo is filled by a pickle program.
* A number may be dropped only by a message, on both ends. Otherwise the other end could refer to a missing object.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from baton_shim.state.fresh import is_faster, numbered_after
from baton_shim.state.nans import Nans
from baton_shim.state.rebuilding import StandIns, TolerantUnpickler
from baton_shim.state.refusal import TableBroken

_UINT = struct.Struct("<I")
_NUMBERED_DIFFERENTLY = "The two kernels number the objects of a message differently"
COMPACT_ABOVE = 4096  # with more dropped numbers than this, and more than half of all, the next message renumbers


class Dummy:
    """Takes a number that has no object."""

    __slots__ = ()


GONE = Dummy()


class Numbering:
    """The objects of one table by number, and the pickler's and unpickler's view of them."""

    def __init__(
        self, anchors: Sequence[Any], find_class: Callable[[str, str], Any], patch: Callable[..., Any]
    ) -> None:
        """`patch`: the anchor whose errors fail the whole message."""
        self.objects: list[Any] = []
        self.memo: dict[int, tuple[int, Any]] = {}
        self.dropped: set[int] = set()  # dropped here, whether or not the other end knows
        self.unsent: set[int] = set()
        self.anchors = len(anchors)
        self._aliases: dict[int, Dummy] = {}  # numbers whose object also has another number
        self.nans = Nans()
        self._find_class, self._patch = find_class, patch
        self._unpickler: _SeededUnpickler | None = None
        self.add(anchors)

    def __len__(self) -> int:
        return len(self.objects)

    def number(self, obj: object) -> int | None:
        entry = self.memo.get(id(obj))
        return None if entry is None else entry[0]

    def add(self, objects: Iterable[Any]) -> None:
        memo = self.memo
        for number, obj in enumerate(objects, len(self.objects)):
            self.objects.append(obj)
            if id(obj) in memo:
                obj = self._aliases[number] = Dummy()
            memo[id(obj)] = (number, obj)

    def drop(self, numbers: Iterable[int]) -> None:
        """Forgets these objects; their numbers remain in use until the table is compacted."""
        numbers = list(numbers)
        for number in numbers:
            del self.memo[id(self._aliases.get(number, self.objects[number]))]
            self.objects[number] = GONE
            self._aliases[number] = dummy = Dummy()
            self.memo[id(dummy)] = (number, dummy)
            self.dropped.add(number)
        if self._unpickler is not None and numbers:
            self._unpickler.forget(numbers)

    def take_back(self, count: int, left: Mapping[int, Any], unsent: set[int]) -> None:
        """Returns to the first `count` numbers. Those of `left` have their objects again."""
        for number in range(count, len(self.objects)):
            del self.memo[id(self._aliases.pop(number, self.objects[number]))]
        del self.objects[count:]
        for number, obj in left.items():
            del self.memo[id(self._aliases.pop(number))]
            self.objects[number] = obj
            if id(obj) in self.memo:
                obj = self._aliases[number] = Dummy()
            self.memo[id(obj)] = (number, obj)
        self.dropped.difference_update(left)
        self.unsent = unsent
        self._unpickler = None  # it has forgotten the objects of these numbers

    def wants_compacting(self) -> bool:
        sent = len(self.dropped) - len(self.unsent)
        return sent > COMPACT_ABOVE and 2 * sent > len(self.objects)

    def compact(self) -> dict[int, int]:
        """Closes the gaps that both ends know. Returns the new number of each object."""
        gaps = self.dropped - self.unsent
        kept = [(number, obj) for number, obj in enumerate(self.objects) if number not in gaps]
        moved = {number: place for place, (number, _) in enumerate(kept)}
        if self._unpickler is not None:  # the frames of an error may keep it alive for long
            self._unpickler.forget(range(self._unpickler.count))
        self.unsent = {moved[number] for number in self.unsent}
        self.dropped = set(self.unsent)
        self.objects, self.memo, self._aliases, self._unpickler = [], {}, {}, None
        self.add(obj for _, obj in kept)
        return moved

    def unreferenced(self) -> list[int]:
        """Numbers of objects that only the table refers to."""
        counts = list(map(sys.getrefcount, self.objects))
        seeded, first = self._seeded(), self.anchors
        parts = (first, min(seeded, len(counts)), _ALONE + 1), (max(first, seeded), len(counts), _ALONE)
        found: list[int] = []
        for begin, end, most in parts:
            if min(counts[begin:end], default=most + 1) <= most:  # rare; the search runs at C's speed
                found += [number for number in range(begin, end) if counts[number] <= most]
        return found

    def unreferenced_among(self, numbers: Iterable[int]) -> list[int]:
        seeded = self._seeded()
        picked = [n for n in numbers if n >= self.anchors]
        counts = map(sys.getrefcount, map(self.objects.__getitem__, picked))
        found = zip(picked, counts, strict=True)
        return [n for n, count in found if count <= _ALONE + (n < seeded)]

    def living(self) -> list[int]:
        """The numbers of all objects; one number for each object."""
        return [n for n in range(self.anchors, len(self.objects)) if n not in self._aliases]

    def own_references(self, number: int) -> int:
        """The number of references from this numbering to an object."""
        return 3 if number < self._seeded() else 2  # the list, the memo, and the unpickler

    def _seeded(self) -> int:
        """The number of objects that the unpickler refers to, too."""
        return 0 if self._unpickler is None else self._unpickler.count

    def memo_for(self, forgotten: Iterable[int], reserved: Sequence[Any]) -> dict[int, tuple[int, Any]]:
        """The initial memo of a pickler: forgotten objects are sent again, reserved objects already have a number."""
        if not forgotten and not reserved:
            return self.memo
        memo = dict(self.memo)
        for number in forgotten:
            del memo[id(self._aliases.get(number, self.objects[number]))]
            dummy = Dummy()
            memo[id(dummy)] = (number, dummy)
        for number, obj in enumerate(reserved, len(self.objects)):
            memo[id(obj)] = (number, obj)
        return memo

    def numbered_by(self, pickler: Any, start: Mapping[int, Any], reserved: Sequence[Any]) -> list[Any]:
        """The objects that a finished dump numbered, in order, after the reserved ones. `start`: its initial memo."""
        if is_faster(len(pickler.saved), len(start)):
            fresh = numbered_after(start, pickler.memo, pickler.saved, pickler.message)
            if fresh is not None:
                return [*reserved, *fresh]
        memo = pickler.memo.copy()
        found = {number: obj for number, obj in memo.values() if number >= len(start)}
        if len(memo) != len(start) + len(found) or any(n not in found for n in range(len(start), len(memo))):
            raise TableBroken("The pickler did not number its objects one after the other")
        return [*reserved, *(found[number] for number in range(len(start), len(memo)))]

    def load(
        self,
        body: memoryview,
        buffers: Iterable[memoryview],
        reserved: Sequence[Any],
        count_after: int,
        ahead: Callable[[Any], None],
        stand_ins: StandIns | None = None,
    ) -> tuple[Any, list[Any]]:
        """Reads one message's pickle. Returns the message and the objects that it numbered (the reserved ones first).

        `ahead` is called with each pickle that precedes the message, before anything else is read. `stand_ins` replace
        objects that cannot be rebuilt.
        """
        if stand_ins is not None:
            known = [*self.objects, *reserved]
            unpickler = TolerantUnpickler(body, buffers, known, self._find_class, self.nans, stand_ins, self._patch)
            message = unpickler.run(ahead)
            fresh = list(unpickler.memo.values())[len(self.objects) :]
            if len(self.objects) + len(fresh) != count_after or fresh[-1] is not message:
                raise TableBroken(_NUMBERED_DIFFERENTLY)
            return message, fresh
        if self._unpickler is None:
            self._unpickler = _SeededUnpickler(self._find_class, self.nans)
        seeded = self._unpickler
        try:
            seeded.seed([*self.objects, *reserved] if reserved else self.objects)
            seeded.buffers.waiting = iter(buffers)
            message = seeded.run(body, ahead)
            return message, seeded.since(len(self.objects), count_after, message)
        except BaseException:
            self._unpickler = None
            raise


def _alone() -> int:
    """The count that is seen above for an object to which only the list of objects and the memo refer.

    It cannot be measured with an object of the table: something else may refer to all existing ones, such as the frames
    of a kept error, but not to later ones.
    """
    objects = [object()]
    memo = {id(objects[0]): (0, objects[0])}
    (count,) = map(sys.getrefcount, map(objects.__getitem__, range(len(memo))))
    return count


_ALONE = _alone()


class _Buffers:
    """An unpickler has one iterator of buffers for life, but each message has its own."""

    waiting: Iterator[memoryview] = iter(())

    def __iter__(self) -> _Buffers:
        return self

    def __next__(self) -> memoryview:
        return next(self.waiting)


class _SeededUnpickler(pickle.Unpickler):
    """One unpickler for the life of a table: its memo grows with each message, at a cost only for what is new."""

    def __init__(self, find_class: Callable[[str, str], Any], nans: Nans) -> None:
        self.nans = nans
        self.file = io.BytesIO()
        self.buffers = _Buffers()
        super().__init__(self.file, buffers=self.buffers)
        self.known: Sequence[Any] = ()
        self.count = 0
        self._find = find_class

    def find_class(self, module: str, name: str) -> Any:
        return self._find(module, name)

    def persistent_load(self, number: int) -> Any:
        return self.known[number] if number >= 0 else self.nans.find(-1 - number)

    def run(self, program: bytes | memoryview, ahead: Callable[[Any], None] | None = None) -> Any:
        self.file.seek(0)
        self.file.truncate()
        self.file.write(program)
        self.file.seek(0)
        try:
            found = self.load()
            while ahead is not None and self.file.tell() < len(program):
                ahead(found)
                found = self.load()
            return found
        finally:
            self.file.seek(0)
            self.file.truncate()

    def seed(self, known: Sequence[Any]) -> None:
        """Adds each missing number: BININT number, BINPERSID, MEMOIZE, POP."""
        self.known = known
        missing = range(self.count, len(known))
        if missing:
            self.run(b"\x80\x05" + b"".join(b"J" + _UINT.pack(n) + b"Q\x940" for n in missing) + b"N.")
        self.known, self.count = (), len(known)

    def forget(self, numbers: Iterable[int]) -> None:
        """Overwrites numbers: NONE, LONG_BINPUT number, POP."""
        program = b"".join(b"Nr" + _UINT.pack(n) + b"0" for n in numbers if n < self.count)
        self.run(b"\x80\x05" + program + b"N.")

    def since(self, first: int, count_after: int, message: Any) -> list[Any]:
        """The objects numbered from `first` on; the last one is the tuple that is the message itself."""
        program = b"".join(b"j" + _UINT.pack(n) for n in range(first, count_after))
        try:
            fresh: list[Any] = self.run(b"\x80\x05](" + program + b"e.")
        except pickle.UnpicklingError as error:
            raise TableBroken("The message numbers fewer objects than its sender counted") from error
        if not fresh or fresh[-1] is not message:
            raise TableBroken(_NUMBERED_DIFFERENTLY)
        self.count = count_after
        return fresh
