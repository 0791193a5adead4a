"""Whether a dict was written to since an earlier check, without reading its contents.

CPython up to 3.13 gives a dict a new, unique number at each change (PEP 509). There is no function that returns it, so
it is read from its place in the object, and only after a test has confirmed the place.

**Invariant:** two equal stamps of one dict mean exactly the same objects in the same order.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

_PLACE = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)  # after the header of all objects, and the length
_CHANGES: tuple[Callable[[dict[Any, Any]], Any], ...] = (
    lambda table: table.update(a=1, b=2),
    lambda table: table.update(b=3),
    lambda table: table.__setitem__("b", 4),
    lambda table: table.__setitem__("c", 5),
    lambda table: table.setdefault("d", 6),
    lambda table: table.pop("d"),
    lambda table: table.popitem(),
    lambda table: table.__delitem__("b"),
    lambda table: table.__ior__({"a": 7}),
    lambda table: table.clear(),
    lambda table: table.update({"a": 8}),
    lambda table: table.__init__(a=9),  # type: ignore[misc]
)


def stamp(table: dict[Any, Any]) -> int | None:
    """None: this Python has no stamps."""
    return _read(table) if _are_kept() else None


def _read(table: dict[Any, Any]) -> int:
    return ctypes.c_uint64.from_address(id(table) + _PLACE).value


@functools.cache
def _are_kept() -> bool:
    table: dict[Any, Any] = {}
    seen = [_read(table)]
    for change in _CHANGES:
        change(table)
        seen.append(_read(table))
        dict(table), list(table.items()), table.get("a"), table.copy()
        if _read(table) != seen[-1]:
            return False
    return len(set(seen)) == len(seen)
