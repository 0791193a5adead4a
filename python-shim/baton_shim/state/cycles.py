"""Objects that hold each other in a circle, and that nobody but the table knows any more.

The reference count of such an object never falls to what the table alone holds. So this counts as Python's own
collector does: from each count go the table's own references, and those that come from other objects at hand. What is
left over comes from elsewhere, and keeps the object alive and all that it refers to. At hand are the table's objects,
the states that it keeps of them, and what lies between them without a number of its own.

**Invariant:** a reference that is not understood counts as one from elsewhere, so nothing is let go of that is in use.
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

_BETWEEN = 100_000  # objects without a number, and ten more for each with one; more is a structure of somebody else
_OF_THE_PROCESS = (types.ModuleType, types.FrameType, type, Kind)
_ANY_OF_THESE = (tuple, dict)  # Python's collector passes those by that hold arrays only


class Pace:
    """When to look for circles: the table has doubled since the last time, or its memory has grown by half.

    A look takes some microseconds for each object. It may take a fiftieth of the time since the last one, however the
    table grows.
    """

    def __init__(self) -> None:
        self._objects, self._bytes = 0, 0
        self._since = time.monotonic()
        self._seconds_per_object = 10e-6

    def is_due(self, objects: int, bytes_: int) -> bool:
        grown = objects > self._objects * 2 + 1000 or bytes_ > self._bytes * 1.5 + (64 << 20)
        return grown and time.monotonic() - self._since > 50 * objects * self._seconds_per_object

    def looked(self, objects: int, bytes_: int, seconds: float) -> None:
        """`objects` and `bytes_` are what was left, `seconds` what it took."""
        self._objects, self._bytes, self._since = objects, bytes_, time.monotonic()
        self._seconds_per_object = max(10e-6, seconds / max(1, objects))


def unreachable(numbering: Numbering, states: Mapping[int, Any], kept: Callable[[int], bool]) -> list[int]:
    """Numbers of what only the table and other unreachable objects hold. What is `kept` lives on in any case."""
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
    """What the nodes refer to besides each other, as far as the collector knows of it, and not beyond reason."""
    most = _BETWEEN + 10 * len(nodes)
    met = {*map(id, nodes), *map(id, anchors)}
    between: list[Any] = []
    while nodes and len(between) < most:
        for function in filter(_is_function, nodes):  # its namespace is not its own
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
    """How many references each has besides the one in `nodes`."""
    (alone,) = map(sys.getrefcount, [object()])
    return [count - alone for count in map(sys.getrefcount, nodes)]


def _reached(start: list[Any], nodes: set[int], state_of: Mapping[int, Any]) -> set[int]:
    """Identities of the nodes that these refer to, with themselves. An object keeps its state alive."""
    reached: set[int] = set()
    while start:
        reached.update(map(id, start))
        start += [state_of[id(obj)] for obj in start if id(obj) in state_of]
        found = {id(child): child for child in gc.get_referents(*start)}
        start = [child for key, child in found.items() if key in nodes and key not in reached]
    return reached


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Other threads and Python's collector wait, so that the counts and the references are of one moment."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    try:
        with collector_paused():
            yield
    finally:
        sys.setswitchinterval(interval)
