"""What the objects hold that stay in this kernel, of all that both kernels know.

Their stand-ins in the other kernel hold the same. So a cell that names one, here or there, also brings up to date what
it holds: the list that a generator adds to, the data set of an iterator, the arguments of a thread.

**Invariant:** nothing travels for this that would not travel otherwise.
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


class Stays:
    def __init__(self, namespace: Mapping[str, Any], numbering: Numbering) -> None:
        self._namespace, self._numbering = namespace, numbering
        self._said: dict[int, dict[int, Any]] = {}  # what the other end heard: numbers, with what had them

    def below(self, numbers: Iterable[int]) -> set[int]:
        """Numbers of what those of these objects that stay here hold, or held at the last message."""
        below: set[int] = set()
        if self._said:
            for number in self._said.keys() & numbers:
                below.update(self._held(number))
                below.update(n for n, part in self._said[number].items() if self._numbering.number(part) == n)
        return below

    def news(
        self, numbers: Iterable[int], fresh: Iterable[Any], dying: Iterable[int]
    ) -> tuple[tuple[int, tuple[str, ...], tuple[int, ...]], ...]:
        """What the other end must hear of these, and of the `fresh` ones that a stand-in was written for.

        All that the message brings has a number by now.
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
        """Those that the other end has stand-ins for."""
        return [self._numbering.objects[number] for number in self._said]

    def drop(self, number: int) -> None:
        self._said.pop(number, None)

    def move(self, moved: Mapping[int, int]) -> None:
        """Take over the numbers of a compacted table."""
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
                if kind is types.FunctionType:  # its namespace is not its own
                    met.update((id(child.__globals__), id(child.__builtins__)))
                between.append(child)
            level = gc.get_referents(*between)
        return found
