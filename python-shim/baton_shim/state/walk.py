"""What the named objects reach: which known objects changed, which segments are in reach, which leaves are new.

The walk follows states, never referrers: what an object refers to is defined by its kind. Known objects are followed by
number, level by level, and those of one kind are compared together, which costs a fraction of a microsecond each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import compress, repeat
from operator import is_, itemgetter
from typing import Any

from baton_shim.state.fresh import EMPTY
from baton_shim.state.kept_objects import KeptObjects
from baton_shim.state.kinds import ATOMS, Kinds, is_leaf
from baton_shim.state.numbering import Numbering
from baton_shim.state.places import PLACES, Place, new_place
from baton_shim.state.refusal import may_be_guilty

Known = tuple[Any, Any]  # a kind, and the state at the last message


@dataclass
class Reach:
    """What a message has to contain, as one walk has found it."""

    marked: set[int]
    given: Set[int] = frozenset()  # what belongs to the other end: neither compared nor followed
    changed: list[int] = field(default_factory=list)
    states: dict[int, Any] = field(default_factory=dict)  # current states of the changed objects
    reserved: list[Any] = field(default_factory=list)  # unknown to the other end, which provides the objects to fill
    places: list[Place] = field(default_factory=list)  # for each of these
    of_modules: dict[int, Place] | None = None  # of objects in the student's own modules; None until they are needed
    as_leaves: dict[int, Any] = field(default_factory=dict)  # states of new and changed large plain containers
    has_nan: bool = False  # whether a new or changed object contains one
    unknown: dict[int, Any] = field(default_factory=dict)  # by id, kept alive while the ids are in use
    unreadable: set[int] = field(default_factory=set)  # ids of unknown objects that do not show what they hold
    views: list[Any] = field(default_factory=list)  # new and changed objects that may share memory

    def reserve(self, obj: Any, place: Place) -> None:
        self.reserved.append(obj)
        self.places.append(place)


_UNREADABLE = object()
_FIXED: Known = (None, None)
_BATCH = 1024  # objects compared at once; if one has changed, each is compared separately


class Walker:
    """Compares the objects of one table with their states at the last message."""

    def __init__(self, numbering: Numbering, kinds: Kinds, kept_objects: KeptObjects) -> None:
        self.numbering, self.kinds, self.kept_objects = numbering, kinds, kept_objects
        self.states: dict[int, Known] = {}
        self.children: dict[int, tuple[int, ...]] = {}
        self._incomplete: set[int] = set()  # objects with children that may get a number
        self.gradients: dict[int, Any] = {}  # of tensors that require one, as of the last message

    def remember(self, numbers: Iterable[int], leaves: Mapping[int, Any]) -> None:
        """Records these objects' states as known to both ends; for large plain containers, the given states.

        Objects that a message has dropped are skipped.
        """
        for number in self._incomplete:
            self.children.pop(number, None)
        self._incomplete.clear()
        for number in numbers:
            if number in self.numbering.dropped:
                continue
            self.forget(number)
            if number in leaves:
                self.states[number] = (self.kinds.leaf, leaves[number])
            else:
                self._remember(number)

    def _remember(self, number: int) -> None:
        obj = self.numbering.objects[number]
        kind = self.kinds.of(obj)
        if self.kinds.why_not(obj) is not None:
            with suppress(Exception):  # the class's own code failed: it stays
                if may_be_guilty(obj):  # a file may be closed, for example, and is sent then
                    self.states[number] = (self.kinds.unsendable, None)
        elif kind.changes:
            try:
                state = kind.read(obj)
            except Exception:  # the class's own code failed: unknown, so never equal
                state = _UNREADABLE
            if state is not None:
                self.states[number] = (kind, state)
            if kind is self.kinds.tensor and (gradient := self.kinds.tensor.gradient(obj)) is not None:
                self.gradients[number] = gradient

    def remember_kept(self, objects: Iterable[Any]) -> None:
        """Records that the other end has a stand-in for each of these, which no patch reaches."""
        for number in filter(None, map(self.numbering.number, objects)):
            kind, state = self.states.get(number, _FIXED)
            if kind is not None and kind is not self.kinds.unsendable:
                self.states[number] = (self.kinds.unsendable, (kind, state))

    def with_new_gradients(self) -> list[Any]:
        """Tensors that got a gradient since the last message from a graph, through which they cannot be found."""
        found = []
        for number, before in self.gradients.items():
            obj = self.numbering.objects[number]
            gradient = self.kinds.tensor.gradient(obj)
            if gradient != before:
                self.gradients[number] = gradient
                found.append(obj)
        return found

    def is_readable(self, number: int) -> bool:
        return self.states[number][1] is not _UNREADABLE

    def forget(self, number: int) -> None:
        self.states.pop(number, None)
        self.children.pop(number, None)
        self.gradients.pop(number, None)

    def forget_above(self, numbers: Set[int]) -> None:
        """Forgets what the objects that refer to these refer to."""
        if numbers:
            above = [number for number, below in self.children.items() if not numbers.isdisjoint(below)]
            for number in above:
                del self.children[number]

    def move(self, moved: dict[int, int]) -> None:
        """Applies the new numbers of a compacted table."""
        self.states = {moved[number]: state for number, state in self.states.items()}
        self.gradients = {moved[number]: gradient for number, gradient in self.gradients.items() if number in moved}
        self.children = {}
        self._incomplete.clear()

    def reach(self, roots: Iterable[Any], given: Set[int] = frozenset()) -> Reach:
        reach = Reach({*given, *range(self.numbering.anchors)}, given)
        self._follow(list(roots), reach)
        return reach

    def include(self, number: int, reach: Reach) -> None:
        """Treats a known object as changed, whether or not it did."""
        reach.marked.add(number)
        self._follow(self._change(number, reach), reach)

    def _follow(self, strangers: list[Any], reach: Reach) -> None:
        level: set[int] = set()
        while level or strangers:
            level |= self._known_of(strangers, reach)
            level -= reach.marked
            reach.marked |= level
            unchanged, strangers = self._sift(list(level), reach)
            level = self._below(unchanged)

    def _known_of(self, strangers: list[Any], reach: Reach) -> set[int]:
        """The known objects among these, and those that these refer to."""
        memo, unknown = self.numbering.memo, reach.unknown
        numbers: set[int] = set()
        while strangers:
            obj = strangers.pop()
            if type(obj) in ATOMS:
                reach.has_nan |= obj != obj
                continue
            entry = memo.get(id(obj))
            if entry is not None:
                numbers.add(entry[0])
            elif id(obj) not in unknown:
                unknown[id(obj)] = obj
                state = self.kinds.leaf.read_if_leaf(obj)
                place = self._place(obj, reach)
                if state is not None:
                    reach.as_leaves[len(self.numbering) + len(reach.reserved)] = state
                    reach.reserve(obj, place or new_place(obj))
                    continue
                if place is not None:
                    reach.reserve(obj, place)
                strangers += self._parts(obj, reach)
        return numbers

    def _place(self, obj: Any, reach: Reach) -> Place | None:
        """Where the other end may have its own one of an unknown object."""
        if reach.of_modules is None:
            reach.of_modules = PLACES.look() if self.kinds.variables.own else {}
        place = reach.of_modules.get(id(obj))
        if place is None or not self.kinds.of(obj).can_be_taken or self._stays(place):
            return None
        return place

    def _stays(self, place: Place) -> bool:
        """Whether its variable stays as it is in each kernel."""
        (module, name), *_ = place[0]
        among = self.kinds.variables.of_dict(vars(sys.modules[module]), module)
        return self.kinds.variable.stays(among.named(name))

    def _sift(self, level: list[int], reach: Reach) -> tuple[list[int], list[Any]]:
        """Which of these objects have not changed, and what the others refer to."""
        unchanged: list[int] = []
        strangers: list[Any] = []
        known = list(map(self.states.get, level, repeat(_FIXED)))
        kinds = list(map(itemgetter(0), known))
        for kind in dict.fromkeys(kinds):
            chosen = list(map(is_, kinds, repeat(kind)))
            numbers = list(compress(level, chosen))
            if kind is None:
                unchanged += numbers
                continue
            states = list(map(itemgetter(1), compress(known, chosen)))
            for start in range(0, len(numbers), _BATCH):
                batch, batch_states = numbers[start : start + _BATCH], states[start : start + _BATCH]
                if self._same(kind.all_same, list(map(self.numbering.objects.__getitem__, batch)), batch_states):
                    unchanged += batch
                    continue
                for number, state in zip(batch, batch_states, strict=True):
                    if self._same(kind.same, self.numbering.objects[number], state):
                        unchanged.append(number)
                    else:
                        strangers += self._change(number, reach)
        return unchanged, strangers

    def _same(self, compare: Callable[[Any, Any], bool], now: Any, then: Any) -> bool:
        try:
            return compare(now, then)
        except Exception:  # the class's own code failed, now or at the last message
            return False

    def _below(self, unchanged: list[int]) -> set[int]:
        children = self.children
        for number in unchanged:
            if number not in children:
                self.children_of(number)
        return self.kept_objects.below(unchanged).union(*map(children.__getitem__, unchanged))

    def _change(self, number: int, reach: Reach) -> list[Any]:
        obj = self.numbering.objects[number]
        kind, known = self.kinds.of(obj), self.states.get(number)
        leaf = self.kinds.leaf.read_if_leaf(obj)
        if leaf is not None:
            state = reach.as_leaves[number] = leaf
        else:
            try:
                state = kind.read(obj)
            except Exception:  # its contents are unknown: the other end keeps what it has
                return []
        reach.changed.append(number)
        if kind.has_memory:
            reach.views.append(obj)
        reach.states[number] = state
        parts = list(kind.parts(obj, state)) if leaf is None else []
        if known is not None and known[0] is kind and known[1] is not _UNREADABLE:
            parts += kind.parts(obj, known[1])  # objects that it has dropped may have changed before that
        return parts

    def _parts(self, obj: Any, reach: Reach) -> list[Any]:
        kind = self.kinds.of(obj)
        if kind.has_memory:
            reach.views.append(obj)
        try:
            return list(kind.parts(obj, kind.read(obj)))
        except Exception:  # the pickler will get the same error, and write a stand-in
            reach.unreadable.add(id(obj))
            return []

    def children_of(self, number: int) -> tuple[int, ...]:
        """Numbers of the objects that a known, unchanged object refers to."""
        obj = self.numbering.objects[number]
        memo = self.numbering.memo
        known = self.states.get(number)
        is_known_leaf = known is not None and known[0] is self.kinds.leaf
        stays_here = known is None and self.kinds.why_not(obj) is not None
        if is_known_leaf or stays_here or type(obj) in ATOMS or number in self.numbering.dropped or is_leaf(obj):
            below: tuple[int, ...] = ()
        else:
            kind, state = known if known is not None else (self.kinds.of(obj), None)
            parts = () if state is _UNREADABLE else kind.parts(obj, state) or ()
            parts = [part for part in parts if type(part) not in ATOMS and part is not EMPTY]
            known_parts = [memo[id(part)][0] for part in parts if id(part) in memo]
            if len(known_parts) < len(parts):
                self._incomplete.add(number)
            below = tuple(set(known_parts))
        self.children[number] = below
        return below
