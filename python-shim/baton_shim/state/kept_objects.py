"""What objects that stay in this kernel hold of the objects known to both kernels.

Their stand-ins in the other kernel hold the same. So if a cell uses one of them, here or there, what it holds is
updated as well: the list that a generator appends to, the data set of an iterator, the arguments of a thread.

**Invariant:** nothing is sent for this that would not be sent otherwise.
"""

from __future__ import annotations

import gc
import types
from asyncio import AbstractEventLoop
from collections.abc import Iterable, Mapping
from contextvars import Context
from typing import Any

from baton_shim.base.closure import used_by
from baton_shim.state.kinds import ATOMS
from baton_shim.state.numbering import Numbering

MOST_OBJECTS = 10_000  # between such an object and what it holds
_CLOSED = (types.ModuleType, type, types.CodeType, types.FrameType, AbstractEventLoop, Context)


class KeptObjects:
    """The objects of one table that stay in this kernel."""

    def __init__(self, namespace: Mapping[str, Any], numbering: Numbering) -> None:
        self._namespace, self._numbering = namespace, numbering
        self._said: dict[int, dict[int, Any]] = {}  # what the other end knows: numbers, with their objects

    def below(self, numbers: Iterable[int]) -> set[int]:
        """Numbers of the objects that kept objects among these hold, or held at the last message."""
        below: set[int] = set()
        if self._said:
            for number in self._said.keys() & numbers:
                below.update(self._held(number))
                below.update(n for n, part in self._said[number].items() if self._numbering.number(part) == n)
        return below

    def news(
        self, numbers: Iterable[int], fresh: Iterable[Any], dying: Iterable[int]
    ) -> tuple[tuple[int, tuple[str, ...], tuple[int, ...]], ...]:
        """What the other end must know about these, and about the `fresh` objects for which a stand-in was written.

        Everything in the message has a number by now.
        """
        if not (self._said or fresh):
            return ()
        new = {number for number in map(self._numbering.number, fresh) if number is not None}
        news = []
        for number in sorted((self._said.keys() & numbers).union(new).difference(dying)):
            held = {n: part for n, part in self._held(number).items() if n not in dying}
            if number in new or held.keys() != self._said[number].keys():
                self._said[number] = held
                uses = used_by((self._numbering.objects[number],), self._namespace)
                news.append((number, tuple(sorted(uses)), tuple(held)))
        return tuple(news)

    def objects(self) -> list[Any]:
        """The objects for which the other end has stand-ins."""
        return [self._numbering.objects[number] for number in self._said]

    def drop(self, number: int) -> None:
        self._said.pop(number, None)

    def move(self, moved: Mapping[int, int]) -> None:
        """Applies the new numbers of a compacted table."""
        self._said = {
            moved[number]: {moved[n]: part for n, part in held.items() if n in moved}
            for number, held in self._said.items()
        }

    def _held(self, number: int) -> dict[int, Any]:
        obj = self._numbering.objects[number]
        memo, anchors = self._numbering.memo, self._numbering.anchors
        met = {id(obj), id(self._namespace)}
        found: dict[int, Any] = {}
        level = gc.get_referents(obj)
        while level and len(met) < MOST_OBJECTS:
            between: list[Any] = []
            for child in level:
                kind = type(child)
                if id(child) in met or kind in ATOMS or issubclass(kind, _CLOSED):
                    continue
                met.add(id(child))
                if id(child) in memo:
                    if memo[id(child)][0] >= anchors:
                        found[memo[id(child)][0]] = child
                    continue
                if kind is types.FunctionType:  # a function does not own its namespace
                    met.update((id(child.__globals__), id(child.__builtins__)))
                between.append(child)
            level = gc.get_referents(*between)
        return found
