"""Takes back a message that no session received, because its cell was refused or was stopped in the queue.

The session still has what the message before it said. So the table returns to that, and the next cell continues it.

**Invariant:** the notebook's objects are not touched: only what the table knows about the other end changes.
"""

from __future__ import annotations

from collections.abc import Iterable

from baton_shim.state.bindings import Bindings
from baton_shim.state.numbering import Numbering
from baton_shim.state.segments import Segments
from baton_shim.state.views import Views
from baton_shim.state.walk import Walker


class Before:
    """What a table knew before a message. It keeps objects alive, so it is dropped as soon as a session answers."""

    def __init__(
        self,
        numbering: Numbering,
        walker: Walker,
        views: Views,
        segments: Segments,
        bindings: Bindings,
        leaving: Iterable[int],
        changing: Iterable[int],
        first_fresh: int,
        nans: int,
    ) -> None:
        """`leaving`: numbers that the message drops. `changing`: numbers of all known objects in it.

        `first_fresh`: its first new segment. `nans`: how many of them had a number before it.
        """
        self._numbering, self._walker, self._views = numbering, walker, views
        self._segments, self._bindings = segments, bindings
        self._count, self._nans, self._first_fresh = len(numbering), nans, first_fresh
        self._leaving = {number: numbering.objects[number] for number in leaving}
        self._states = {number: walker.states[number] for number in changing if number in walker.states}
        self._unsent = set(numbering.unsent)
        self._views_before = views.known()
        self._segments_before = {n: one for n, one in segments.by_number.items() if n < first_fresh}
        self._names = bindings.known()

    def restore(self) -> None:
        for number in range(self._count, len(self._numbering)):
            self._walker.forget(number)
        self._numbering.take_back(self._count, self._leaving, self._unsent)
        self._numbering.nans.forget(self._nans)
        self._walker.states.update(self._states)
        self._walker.children.clear()
        self._segments.put_back(self._segments_before, self._first_fresh)
        self._views.put_back(*self._views_before)
        self._bindings.put_back(self._names)
