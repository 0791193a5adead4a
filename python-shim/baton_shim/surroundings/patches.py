"""What the notebook set on classes and modules of libraries, such as `pandas.DataFrame.total = total`.

Nobody tells of it, so those that the code of cells names are looked at: the attributes that a cell assigns, and a class
for whatever in it is of the notebook. The notebook's end reads the cells and says which these are.
`sympy.init_printing` sets its own functions, on one class of sympy's. Classes of the notebook that an abstract class of
a library counts as its own are told with it.

**Invariant:** looks into dictionaries only; no attribute look-up runs code of a library.
"""

from __future__ import annotations

import abc
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from baton_shim import late

PATH = re.compile(r"(?<![\w.'\"])([^\W\d]\w*(?:\.[^\W\d]\w*)*)(\s*[-+*/%@&|^<>]{0,2}=(?!=))?")
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: one that takes new attributes
_MISSING = object()
_WRAPPERS = frozenset((classmethod, staticmethod, property))
_OWN = frozenset((types.FunctionType, type))
_OTHERS = ("__main__", "builtins", "IPython", "ipykernel")  # those of IPython are settings, which are told apart
_OF_THE_KERNEL = frozenset(
    "stdin stdout stderr displayhook excepthook path argv modules meta_path path_hooks executable prefix".split()
)

_REGISTERED = "(registered)"
_SYMPY = "sympy.core._print_helpers", "Printable"

Owner = tuple[str, str, str]
"""Module, class in it, and attribute; either of the last two is empty."""
Key = tuple[str, str, str]


class Patches:
    """One end's view."""

    def __init__(self) -> None:
        self.owners: dict[Owner, None] = {}
        self._cells = 0  # so many were read
        self._before: dict[Key, Any] = {}
        self._waiting: dict[Key, Any] = {}

    def read(self, text: str, namespace: Mapping[str, Any]) -> None:
        """Notes what this code names."""
        self.owners.update(dict.fromkeys(owners(text, namespace)))

    def read_new(self, cells: list[str], namespace: Mapping[str, Any]) -> None:
        """In the notebook. The last cell may only be about to import what it names, so it is read again next time."""
        for text in cells[self._cells :]:
            self.read(text, namespace)
        self._cells = max(0, len(cells) - 1)

    def named(self) -> str:
        """What the notebook's end has read. As one text: containers in a message that has objects get numbers, and a
        message with something that has a number has objects.
        """
        return "\n".join(map("\0".join, self.owners))

    def hear(self, named: str) -> None:
        """In a session."""
        self.owners = {}
        for line in named.splitlines():
            module, kind, attribute = line.split("\0")
            self.owners[module, kind, attribute] = None

    def look(self) -> list[tuple[Key, Any]]:
        found = (*printing(), *(entry for owner in self.owners for entry in patched(owner)))
        return [*self._waiting.items(), *((key, one) for key, one in found if self._is_change(key, one))]

    def _is_change(self, key: Key, one: Any) -> bool:
        """A library's own functions and classes are none where they belong, but for one that was put back here."""
        named = isinstance(one, (types.FunctionType, types.BuiltinFunctionType, type))
        own = named and (one.__module__, one.__qualname__) == (key[0], ".".join(filter(None, key[1:])))
        return not own or (key in self._before and one is not self._before[key])

    def land(self, before: Iterable[tuple[Key, Any]], now: list[tuple[Key, Any]]) -> None:
        known, staying = {key for key, _ in before}, {key for key, _ in now}
        for key, one in [*((key, self._before.pop(key, _MISSING)) for key in known - staying), *now]:
            owner = owner_of(key[0], key[1])
            if owner is None:
                self._wait(key, one)
                continue
            if key[2] == _REGISTERED:
                for kind in one if one is not _MISSING else ():
                    owner.register(kind)
                continue
            present = vars(owner).get(key[2], _MISSING)
            if key in staying - known:
                self._before.setdefault(key, present)
            if one is not _MISSING:
                setattr(owner, key[2], one)
            elif present is not _MISSING:
                delattr(owner, key[2])

    def _wait(self, key: Key, one: Any) -> None:
        """Until something here imports the library."""
        if one is _MISSING:
            self._waiting.pop(key, None)
            return
        if key not in self._waiting and key[0] not in sys.modules:
            late.when_imported(key[0], lambda: self._arrived(key))
        self._waiting[key] = one

    def _arrived(self, key: Key) -> None:
        if key in self._waiting:
            self.land((), [(key, self._waiting.pop(key))])


def owners(text: str, namespace: Mapping[str, Any]) -> Iterator[Owner]:
    for match in PATH.finditer(text):
        first, *parts = match[1].split(".")
        found = namespace.get(first)
        for number, part in enumerate(["", *parts]):
            if part:
                found = vars(found).get(part)
            assigned = parts[-1] if match[2] is not None and number == len(parts) - 1 else ""
            if isinstance(found, types.ModuleType):
                if assigned and found.__name__ != "__main__":
                    yield found.__name__, "", assigned
            elif isinstance(found, type):
                if str(found.__module__).partition(".")[0] not in _OTHERS and found.__flags__ & _HEAP_TYPE:
                    yield found.__module__, found.__qualname__, ""
                    if assigned:
                        yield found.__module__, found.__qualname__, assigned
                break
            else:
                break


def owner_of(module: str, qualified_name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in filter(None, qualified_name.split(".")):
        found = vars(found).get(part) if isinstance(found, (types.ModuleType, type)) else None
    return found


def patched(owner: Owner) -> Iterator[tuple[Key, Any]]:
    """What was assigned; else functions and classes of the notebook, also as methods and properties."""
    module, kind_name, attribute = owner
    found = owner_of(module, kind_name)
    if found is None:
        return
    held = vars(found)
    entries: Iterable[tuple[str, Any]] = ()
    if not attribute:
        entries = [(name, one) for name, one in held.items() if is_of_notebook(one)]
        if isinstance(found, abc.ABCMeta) and (kinds := registered(found)):
            entries.append((_REGISTERED, kinds))
    elif (module != "sys" or attribute not in _OF_THE_KERNEL) and attribute in held:
        entries = [(attribute, held[attribute])]
    yield from (((module, kind_name, name), one) for name, one in entries if not isinstance(one, types.ModuleType))


def registered(kind: abc.ABCMeta) -> tuple[type, ...]:
    found = (known() for known in abc._get_dump(kind)[0])  # type: ignore[attr-defined]
    return tuple(one for one in found if one is not None and one.__module__ == "__main__")


def is_of_notebook(one: Any) -> bool:
    if type(one) in _WRAPPERS:
        one = one.fget if type(one) is property else one.__func__
    return type(one) in _OWN and one.__module__ == "__main__"


def printing() -> Iterator[tuple[Key, Any]]:
    """What sympy shows its own objects with, where that was chosen."""
    held = vars(owner_of(*_SYMPY) or object)
    for name in ("_repr_latex_", "_repr_png_", "_repr_svg_"):
        one = held.get(name)
        usual = name if name == "_repr_latex_" else "_repr_disabled"
        if getattr(one, "__qualname__", f"Printable.{usual}") != f"Printable.{usual}":
            yield (*_SYMPY, name), one
