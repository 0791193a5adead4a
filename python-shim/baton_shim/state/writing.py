"""The pickled part of a message: patches of changed objects, rebound names, and the caller's addition."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from baton_shim.state.deep import with_deep_stack
from baton_shim.state.deferred import Budget
from baton_shim.state.failures import failure_of
from baton_shim.state.fresh import RECORDED_ABOVE
from baton_shim.state.kinds import Here, Kinds
from baton_shim.state.numbering import Numbering
from baton_shim.state.paths import Paths
from baton_shim.state.pickler import Failure, NanPickler, Patch, TablePickler
from baton_shim.state.refusal import Refused
from baton_shim.state.walk import Reach

_MOST_FAILURES = 100  # the limit in one message for objects whose pickling fails


@dataclass(frozen=True)
class Sending:
    """What the other end is to have after one message."""

    roots: dict[str, Any]
    """Names with their values here."""
    certain: Set[str]
    """Those of them that must not be replaced by a `StandIn`."""
    extra: object
    """Values that belong to the message and have no name in the notebook."""
    home: bool
    """Whether this end is the notebook kernel."""
    gone: Sequence[str] = ()
    """Names that were deleted here."""
    unsent: Set[str] = frozenset()
    """Names that the other end did not send before, and may have bound to other objects meanwhile."""
    dying: Sequence[int] = ()
    """Numbers of objects that are sent for the last time."""
    modules: bytes | None = None
    """What the other end must load before it reads the pickle."""
    given: Set[int] = frozenset()
    """Numbers of objects that belong to the other end until its cell ends."""
    budget: Budget | None = None
    places: Sequence[tuple[str, object]] = ()
    """Parts of `extra`, each with a name for messages."""

    @property
    def extra_values(self) -> list[Any]:
        return list(self.extra.values()) if isinstance(self.extra, dict) else [self.extra]


@dataclass
class Written:
    """The pickle of one message, and what was left out of it."""

    body: bytes | memoryview
    buffers: list[Any] = field(default_factory=list)
    fresh: list[Any] = field(default_factory=list)
    """Objects that are new to the table, in the order of their numbers."""
    left_behind: list[tuple[object, str]] = field(default_factory=list)
    """What could not be included, and why."""
    left: dict[str, str] = field(default_factory=dict)
    """In a session: names of such objects, with the reason."""


class Writer:
    """Writes the pickles of one table."""

    def __init__(self, here: Here, kinds: Kinds, numbering: Numbering, patch: Callable[[int, str, Any], None]) -> None:
        """`patch`: the method of the receiving table that updates one object."""
        self._here, self._kinds, self._numbering, self._patch = here, kinds, numbering, patch

    def plain(self, extra: object) -> Written:
        """A message in which only the caller's addition is pickled, and refers to no known object."""
        return Written(pickle.dumps(extra, protocol=5))

    def write(
        self, sending: Sending, reach: Reach, rebound: dict[str, Any], replaced: Set[int], last: Set[int]
    ) -> Written:
        """`last`: numbers of holders of replaced objects, which are updated after all others.

        Raises `Refused` for a certain name in the notebook kernel that cannot be sent.
        """
        patches = self._patches(reach, last)
        start = self._numbering.memo_for(replaced, reach.reserved)
        file, pickler = self._dump(patches, rebound, sending, start, reach)
        fresh = self._numbering.numbered_by(pickler, start, reach.reserved)
        names: dict[int, list[str]] = {}
        for name, root in sending.roots.items():
            names.setdefault(id(root), []).append(name)
        left: dict[str, str] = {}
        for obj, reason, hint in pickler.left_behind:
            for name in names.get(id(obj), ()):
                if not sending.home:
                    left[name] = reason
                elif name in sending.certain:
                    raise Refused(name, reason, hint)
        return Written(
            file.getvalue(),  # without a copy; a view of the file would keep it from closing
            pickler.large.buffers,
            [None if type(obj) is Patch else obj for obj in fresh],  # as its reader has
            [(obj, reason) for obj, reason, _ in pickler.left_behind],
            left,
        )

    def _patches(self, reach: Reach, last: Set[int]) -> list[Patch]:
        """Containers that hash objects come after those objects; holders of replaced objects come last."""
        kinds, known = self._kinds, self._numbering.objects
        objects = {number: known[number] for number in reach.changed}
        objects |= enumerate(reach.reserved, len(known))
        states = reach.states | reach.as_leaves
        patches = []
        for number in sorted(objects, key=lambda n: (n in last, kinds.of(objects[n]).hashes, n)):
            obj = objects[number]
            kind = kinds.leaf if number in reach.as_leaves else kinds.of(obj)
            state = states[number] if number in states else kind.read(obj)
            patches.append(Patch(number, kind.name, kind.content(obj, state)))
        return patches

    def _dump(
        self, patches: list[Patch], rebound: dict[str, Any], sending: Sending, start: dict[int, Any], reach: Reach
    ) -> tuple[io.BytesIO, TablePickler]:
        """Pickles again, with a stand-in for each object whose pickling fails."""
        named = [*sending.roots.items(), *sending.places]
        names = {id(root): name for name, root in reversed(named)} if sending.home else {}
        paths = Paths(named, self._kinds)

        def explain(obj: Any, reason: str) -> str:
            if (name := names.get(id(obj))) is not None:
                return str(Refused(name, reason))
            path = paths.path_to(obj) or f"a {type(obj).__qualname__}"
            return f"'{path}' {reason} and {self._here.where_it_is}"

        failed: dict[int, Failure] = {}
        pickler: TablePickler

        def dump() -> io.BytesIO:
            nonlocal pickler
            file = io.BytesIO()
            kind = NanPickler if reach.has_nan else TablePickler
            pickler = kind(file, self._kinds, self._patch, explain, self._numbering.nans, failed)
            pickler.memo = start
            if kind is TablePickler and len(start) >= RECORDED_ABOVE:
                pickler.record()
            self._here.forget_message()
            pickler.dump_message(patches, rebound, sending.extra)
            return file

        while True:
            try:
                try:
                    file = dump()
                except RecursionError:
                    file = with_deep_stack(dump)
                return file, pickler
            except Exception as error:
                failure = failure_of(pickler.last, error, paths, failed)
                if len(failed) >= _MOST_FAILURES:
                    if (path := paths.path_to(failure[0])) is None:
                        raise
                    raise Refused(path, *failure[1:]) from None
                failed[id(failure[0])] = failure
