"""What the notebook set on classes and modules of libraries, such as `pandas.DataFrame.total = total`.

Nobody tells of it, so those that the code of cells names are looked at: a class for whatever in it is of the notebook,
a module for the attributes that a cell assigns. The notebook's end reads the cells and says which these are.

**Invariant:** looks into dictionaries only; no attribute look-up runs code of a library.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

PATH = re.compile(r"(?<![\w.'\"])[^\W\d]\w*(?:\.[^\W\d]\w*)*(\s*=(?!=))?")
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: one that takes new attributes
_MISSING = object()
_WRAPPERS = frozenset((classmethod, staticmethod, property))
_OWN = frozenset((types.FunctionType, type))

Owner = tuple[str, str, str]
"""Module, class in it, and attribute; either of the last two is empty."""
Key = tuple[str, str, str]


class Patches:
    """One end's view."""

    def __init__(self) -> None:
        self.owners: dict[Owner, None] = {}
        self._cells = 0  # so many were read
        self._before: dict[Key, Any] = {}

    def read(self, text: str, namespace: Mapping[str, Any]) -> None:
        """Notes what this code names."""
        self.owners.update(dict.fromkeys(owners(text, namespace)))

    def read_new(self, cells: list[str], namespace: Mapping[str, Any]) -> None:
        """In the notebook. The last cell may only be about to import what it names, so it is read again next time."""
        for text in cells[self._cells :]:
            self.read(text, namespace)
        self._cells = max(0, len(cells) - 1)

    def look(self) -> list[tuple[Key, Any]]:
        return [(key, one) for owner in self.owners for key, one in patched(owner)]

    def land(self, before: Iterable[tuple[Key, Any]], now: list[tuple[Key, Any]]) -> None:
        staying = {key for key, _ in now}
        for key, one in [*((key, self._before.pop(key, _MISSING)) for key, _ in before if key not in staying), *now]:
            owner = owner_of(key[0], key[1])
            if owner is None:  # not imported here
                continue
            present = vars(owner).get(key[2], _MISSING)
            if key in staying:
                self._before.setdefault(key, present)
            if one is not _MISSING:
                setattr(owner, key[2], one)
            elif present is not _MISSING:
                delattr(owner, key[2])


def owners(text: str, namespace: Mapping[str, Any]) -> Iterator[Owner]:
    for match in PATH.finditer(text):
        first, *parts = match[0].rstrip("= \t").split(".")
        found = namespace.get(first)
        for number, part in enumerate(["", *parts]):
            if part:
                found = vars(found).get(part)
            if isinstance(found, types.ModuleType):
                is_assigned = match[1] is not None and number == len(parts) - 1
                if is_assigned and found.__name__ != "__main__":
                    yield found.__name__, "", parts[-1]
            elif isinstance(found, type):
                if found.__module__ not in ("__main__", "builtins") and found.__flags__ & _HEAP_TYPE:
                    yield found.__module__, found.__qualname__, ""
                break
            else:
                break


def owner_of(module: str, qualified_name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in filter(None, qualified_name.split(".")):
        found = vars(found).get(part) if isinstance(found, (types.ModuleType, type)) else None
    return found


def patched(owner: Owner) -> Iterator[tuple[Key, Any]]:
    """Functions and classes, also as methods and properties."""
    module, kind_name, attribute = owner
    found = owner_of(module, kind_name)
    if found is None:
        return
    held = vars(found)
    for name, one in [(attribute, held.get(attribute))] if attribute else tuple(held.items()):
        kind, within = type(one), one
        if kind in _WRAPPERS:
            within = one.fget if kind is property else one.__func__
            kind = type(within)
        if kind in _OWN and within.__module__ == "__main__":
            yield (module, kind_name, name), one
