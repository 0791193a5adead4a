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


def path_to(target: Any, roots: Iterable[tuple[str, Any]], kinds: Kinds) -> str | None:
    """The shortest path; `None` if it leads through something that cannot be written."""
    waiting = deque(roots)
    seen: set[int] = set()
    while waiting and len(seen) < _SEARCHED_OBJECTS:
        path, obj = waiting.popleft()
        if obj is target:
            return path
        if type(obj) in ATOMS or type(obj) is StandIn or id(obj) in seen or is_a(obj, types.ModuleType):
            continue
        seen.add(id(obj))
        if type(obj) in REFERRED:
            continue
        with contextlib.suppress(Exception):  # in the student's own class: only the other paths from here are lost
            waiting.extend(_parts(path, obj, kinds))
    return None


def _parts(path: str, obj: Any, kinds: Kinds) -> Iterator[tuple[str, Any]]:
    if is_a(obj, dict):
        yield from ((f"{path}[{_short(key)}]", value) for key, value in dict.items(obj))
    for base in (list, tuple):
        if is_a(obj, base):
            yield from ((f"{path}[{index}]", value) for index, value in enumerate(base.__iter__(obj)))
    if type(obj) is types.FunctionType:
        if obj.__closure__ and kinds.function.ours(obj):
            for name, cell in zip(obj.__code__.co_freevars, obj.__closure__, strict=True):
                yield from ((f"{path} (its variable {name})", content) for content in kinds.cell.read(cell))
        return
    if is_a(obj, type):
        if made_in_notebook(obj):
            yield from ((f"{path}.{name}", value) for name, value in tuple(of_type(obj, "__dict__").items()))
        return
    attributes = _attributes(obj)
    if attributes is not None:
        yield from ((f"{path}.{name}", value) for name, value in tuple(dict.items(attributes)))
    else:
        kind = kinds.of(obj)
        yield from ((f"{path} (inside)", part) for part in tuple(kind.parts(obj, kind.read(obj))))


def _attributes(obj: object) -> dict[str, Any] | None:
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None
    return found if is_a(found, dict) else None


def _short(key: Any) -> str:
    text = repr(key) if type(key) in ATOMS or type(key) is tuple else f"<{type(key).__qualname__}>"
    return text if len(text) <= 40 else f"{text[:37]}..."
