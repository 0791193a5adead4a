"""What the named objects reach: which known objects changed, which segments are in reach, which leaves are new.

The walk follows states, never referrers: what an object refers to is what its kind says. Known, unchanged objects
are followed by number, which costs well under a microsecond each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from baton_shim.state.kinds import ATOMS, Kinds, is_leaf
from baton_shim.state.numbering import Numbering

Known = tuple[Any, Any]  # a kind and the state at the last message


@dataclass
class Reach:
    marked: bytearray
    given: bytes = b""  # for each number, whether the other end has it for itself: neither looked at nor followed
    changed: list[int] = field(default_factory=list)
    states: dict[int, Any] = field(default_factory=dict)  # of the changed ones, as they are now
    leaves: list[Any] = field(default_factory=list)  # large plain containers that the other end does not know
    unknown: dict[int, Any] = field(default_factory=dict)  # by id, kept alive while the ids are in use


_UNREADABLE = object()


class Walker:
    def __init__(self, numbering: Numbering, kinds: Kinds) -> None:
        self.numbering, self.kinds = numbering, kinds
        self.states: dict[int, Known] = {}
        self.children: dict[int, tuple[int, ...]] = {}

    def remember(self, number: int) -> None:
        """Note the object's state as what both ends hold now."""
        obj = self.numbering.objects[number]
        kind = self.kinds.of(obj)
        self.children.pop(number, None)
        if kind.changes:
            try:
                state = kind.read(obj)
            except Exception:  # the class's own code failed: not known, so never the same
                state = _UNREADABLE
            if state is not None:
                self.states[number] = (kind, state)
                return
        self.states.pop(number, None)

    def is_readable(self, number: int) -> bool:
        return self.states[number][1] is not _UNREADABLE

    def forget(self, number: int) -> None:
        self.states.pop(number, None)
        self.children.pop(number, None)

    def move(self, moved: dict[int, int]) -> None:
        """Take over the numbers of a compacted table."""
        self.states = {moved[number]: state for number, state in self.states.items()}
        self.children = {}

    def reach(self, roots: Iterable[Any], given: bytes = b"") -> Reach:
        reach = Reach(bytearray(given or len(self.numbering)), given)
        reach.marked[: self.numbering.anchors] = b"\1" * self.numbering.anchors
        self._follow(list(roots), reach)
        return reach

    def include(self, number: int, reach: Reach) -> None:
        """Treat a known object as changed, whether it did or not."""
        reach.marked[number] = 1
        self._follow(self._change(number, reach), reach)

    def _follow(self, strangers: list[Any], reach: Reach) -> None:
        states, children, memo, objects = self.states, self.children, self.numbering.memo, self.numbering.objects
        marked, unknown = reach.marked, reach.unknown
        numbers: list[int] = []
        while numbers or strangers:
            while numbers:
                number = numbers.pop()
                if marked[number]:
                    continue
                marked[number] = 1
                known = states.get(number)
                if known is not None:
                    try:
                        unchanged = known[0].same(objects[number], known[1])
                    except Exception:  # its class's own code failed, now or at the last message
                        unchanged = False
                    if not unchanged:
                        strangers += self._change(number, reach)
                        continue
                below = children.get(number)
                numbers += self.children_of(number) if below is None else below
            while strangers:
                obj = strangers.pop()
                if type(obj) in ATOMS:
                    continue
                entry = memo.get(id(obj))
                if entry is not None:
                    numbers.append(entry[0])
                elif id(obj) not in unknown:
                    unknown[id(obj)] = obj
                    if is_leaf(obj):
                        reach.leaves.append(obj)
                    else:
                        strangers += self._parts(obj)

    def _change(self, number: int, reach: Reach) -> list[Any]:
        obj = self.numbering.objects[number]
        kind = self.kinds.of(obj)
        try:
            state = kind.read(obj)
        except Exception:  # it cannot be said what it holds: the other end keeps what it has
            return []
        reach.changed.append(number)
        reach.states[number] = state
        if is_leaf(obj):
            return []
        parts = list(kind.parts(obj, state))
        known = self.states.get(number)
        if known is not None and known[0] is kind and known[1] is not _UNREADABLE:
            parts += kind.parts(obj, known[1])  # what it let go of may have changed before that
        return parts

    def _parts(self, obj: Any) -> list[Any]:
        kind = self.kinds.of(obj)
        try:
            return list(kind.parts(obj, kind.read(obj)))
        except Exception:  # the pickler will meet the same and put a stand-in there
            return []

    def children_of(self, number: int) -> tuple[int, ...]:
        """Numbers of what a known, unchanged object refers to."""
        obj = self.numbering.objects[number]
        memo = self.numbering.memo
        known = self.states.get(number)
        if type(obj) in ATOMS or number in self.numbering.dropped:
            below: tuple[int, ...] = ()
        else:
            kind, state = known if known is not None else (self.kinds.of(obj), None)
            if state is _UNREADABLE:
                return ()
            found = {
                memo[id(part)][0] for part in kind.parts(obj, state) if type(part) not in ATOMS and id(part) in memo
            }
            below = tuple(found)
        self.children[number] = below
        return below
