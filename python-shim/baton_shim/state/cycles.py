"""Finds reference cycles that only the table refers to.

The reference count of an object in a cycle never falls to the table's own references. So this counts as Python's own
collector does: it subtracts from each count the table's references and those from other known objects. A remaining
reference comes from elsewhere, and keeps the object alive, with everything that it refers to. The known objects are the
table's objects, the states that the table keeps of them, and objects between these that have no number.

**Invariant:** a reference that is not understood counts as one from elsewhere, so no object in use is dropped.
"""

from __future__ import annotations

import gc
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from baton_shim.state.collector import collector_paused
from baton_shim.state.kinds import Kind
from baton_shim.state.numbering import Numbering

_BETWEEN = 100_000  # objects without a number, plus ten per numbered one; beyond that, it is an unrelated structure
_OF_THE_PROCESS = (types.ModuleType, types.FrameType, type, Kind)
_ANY_OF_THESE = (tuple, dict)  # Python's collector does not track those that hold only arrays


class Pace:
    """When to look for cycles: the table has doubled since the last time, or its memory has grown by half.

    A search takes some microseconds per object. However fast the table grows, searching takes at most 2 % of the time.
    """

    def __init__(self) -> None:
        self._objects, self._bytes = 0, 0
        self._since = time.monotonic()
        self._seconds_per_object = 10e-6

    def is_due(self, objects: int, bytes_: int) -> bool:
        grown = objects > self._objects * 2 + 1000 or bytes_ > self._bytes * 1.5 + (64 << 20)
        return grown and time.monotonic() - self._since > 50 * objects * self._seconds_per_object

    def looked(self, objects: int, bytes_: int, seconds: float) -> None:
        """`objects` and `bytes_`: what remained. `seconds`: how long it took."""
        self._objects, self._bytes, self._since = objects, bytes_, time.monotonic()
        self._seconds_per_object = max(10e-6, seconds / max(1, objects))


def unreachable(numbering: Numbering, states: Mapping[int, Any], kept: Callable[[int], bool]) -> list[int]:
    """Numbers of objects that only the table and other unreachable objects refer to, except those that are `kept`."""
    numbers = numbering.living()
    with _undisturbed():
        nodes = [numbering.objects[number] for number in numbers]
        nodes += [states[number] for number in numbers if number in states]
        own = [numbering.own_references(number) for number in numbers]
        own += [1] * (len(nodes) - len(own))
        nodes += _between(nodes, numbering.objects[: numbering.anchors])
        own += [0] * (len(nodes) - len(own))
        inside = Counter(map(id, gc.get_referents(*nodes)))
        counts = _counts(nodes)
    held = [node for node, count, less in zip(nodes, counts, own, strict=True) if count - less > inside[id(node)]]
    held += [numbering.objects[number] for number in numbers if kept(number)]
    state_of = {id(numbering.objects[number]): states[number] for number in numbers if number in states}
    alive = _reached(held, set(map(id, nodes)), state_of)
    return [number for number in numbers if id(numbering.objects[number]) not in alive]


def _between(nodes: list[Any], anchors: list[Any]) -> list[Any]:
    """What the nodes refer to besides each other, as far as the collector knows it, within a limit."""
    most = _BETWEEN + 10 * len(nodes)
    met = {*map(id, nodes), *map(id, anchors)}
    between: list[Any] = []
    while nodes and len(between) < most:
        for function in filter(_is_function, nodes):  # a function does not own its namespace
            met.update((id(function.__globals__), id(function.__builtins__)))
        found = {id(child): child for child in gc.get_referents(*nodes)}
        nodes = [child for key, child in found.items() if key not in met and _is_counted(child)]
        met.update(found)
        between += nodes
    return between


def _is_function(obj: Any) -> bool:
    return type(obj) is types.FunctionType


def _is_counted(obj: Any) -> bool:
    kind = type(obj)
    return (kind in _ANY_OF_THESE or gc.is_tracked(obj)) and not issubclass(kind, _OF_THE_PROCESS)


def _counts(nodes: list[Any]) -> list[int]:
    """The number of references to each node, without the one in `nodes`."""
    (alone,) = map(sys.getrefcount, [object()])
    return [count - alone for count in map(sys.getrefcount, nodes)]


def _reached(start: list[Any], nodes: set[int], state_of: Mapping[int, Any]) -> set[int]:
    """Identities of these nodes and of all nodes that they refer to. An object keeps its state alive."""
    reached: set[int] = set()
    while start:
        reached.update(map(id, start))
        start += [state_of[id(obj)] for obj in start if id(obj) in state_of]
        found = {id(child): child for child in gc.get_referents(*start)}
        start = [child for key, child in found.items() if key in nodes and key not in reached]
    return reached


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Pauses other threads and Python's collector, so that counts and references are consistent."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    try:
        with collector_paused():
            yield
    finally:
        sys.setswitchinterval(interval)
