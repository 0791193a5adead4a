"""The path from a name to an object as a student would write it: `loader._iterator`, `stages[3]`, `options['log']`."""

from __future__ import annotations

import contextlib
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from baton_shim.base.examine import is_a, made_in_notebook, of_type
from baton_shim.base.here import REFERRED
from baton_shim.state.kinds import ATOMS, Kinds
from baton_shim.state.refusal import StandIn

_SEARCHED_OBJECTS = 50_000


class _Step:
    """How the search met an object: below which other one, and what is written after the path to that."""

    __slots__ = ("above", "obj", "text")

    def __init__(self, above: _Step | None, text: str, obj: Any) -> None:
        self.above, self.text, self.obj = above, text, obj

    def from_root(self) -> list[_Step]:
        """All steps from the root to this one."""
        steps = [self]
        while (above := steps[-1].above) is not None:
            steps.append(above)
        return steps[::-1]


class Paths:
    """The paths from the roots to any number of objects, by one search, which goes only as far as it must."""

    def __init__(self, roots: Iterable[tuple[str, Any]], kinds: Kinds) -> None:
        """What the roots reach must not change between two calls."""
        self._kinds = kinds
        self._waiting: deque[_Step] = deque()  # Bounded by what the roots reach.
        self._met: dict[int, _Step] = {}  # each keeps its object alive, so that the ids remain valid
        self._wait(None, roots)

    def path_to(self, target: Any) -> str | None:
        """The shortest path; `None` if it leads through something that cannot be written."""
        step = self._step_to(target)
        return None if step is None else "".join(one.text for one in step.from_root())

    def root_of(self, target: Any) -> tuple[str, Any] | None:
        """The name and object at which that path begins."""
        if (step := self._step_to(target)) is None:
            return None
        root, *_ = step.from_root()
        return root.text, root.obj

    def _step_to(self, target: Any) -> _Step | None:
        step = self._met.get(id(target))
        while step is None and self._waiting and len(self._met) < _SEARCHED_OBJECTS:
            met = self._continue_search()
            if met is not None and met.obj is target:
                step = met
        return step

    def _continue_search(self) -> _Step | None:
        """The next object that had not been met."""
        step = self._waiting.popleft()
        obj = step.obj
        if id(obj) in self._met:
            return None
        self._met[id(obj)] = step
        if type(obj) is StandIn or type(obj) in REFERRED or is_a(obj, types.ModuleType):
            return step
        with contextlib.suppress(Exception):  # in the student's own class: only the other paths from here are lost
            self._wait(step, _parts(obj, self._kinds))
        return step

    def _wait(self, above: _Step | None, parts: Iterable[tuple[str, Any]]) -> None:
        self._waiting.extend(_Step(above, text, part) for text, part in parts if type(part) not in ATOMS)


def path_to(target: Any, roots: Iterable[tuple[str, Any]], kinds: Kinds) -> str | None:
    """The shortest path to one object."""
    return Paths(roots, kinds).path_to(target)


def _parts(obj: Any, kinds: Kinds) -> Iterator[tuple[str, Any]]:
    if is_a(obj, dict):
        yield from ((f"[{_short(key)}]", value) for key, value in dict.items(obj))
    for base in (list, tuple):
        if is_a(obj, base):
            yield from ((f"[{index}]", value) for index, value in enumerate(base.__iter__(obj)))
    if type(obj) is types.FunctionType:
        if obj.__closure__ and kinds.function.ours(obj):
            for name, cell in zip(obj.__code__.co_freevars, obj.__closure__, strict=True):
                yield from ((f" (its variable {name})", content) for content in kinds.cell.read(cell))
        return
    if is_a(obj, type):
        if made_in_notebook(obj):
            yield from ((f".{name}", value) for name, value in tuple(of_type(obj, "__dict__").items()))
        return
    attributes = _attributes(obj)
    if attributes is not None:
        yield from ((f".{name}", value) for name, value in tuple(dict.items(attributes)))
    else:
        kind = kinds.of(obj)
        yield from ((" (inside)", part) for part in tuple(kind.parts(obj, kind.read(obj))))


def _attributes(obj: object) -> dict[str, Any] | None:
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None
    return found if is_a(found, dict) else None


def _short(key: Any) -> str:
    text = repr(key) if type(key) in ATOMS or type(key) is tuple else f"<{type(key).__qualname__}>"
    return text if len(text) <= 40 else f"{text[:37]}..."
