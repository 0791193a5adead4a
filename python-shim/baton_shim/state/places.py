"""Objects that the student's own modules hold, each under a name by which both kernels find their own one.

Such an object is sent like a change of the other kernel's own one, because the module there may refer to it in other
ways than by this name, such as a default argument. A new object takes its place if the other kernel holds an object of
another type there, or one that is known already.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

from baton_shim.base.closure import own_module
from baton_shim.state.kinds.base import ATOMS
from baton_shim.state.numbering import Numbering
from baton_shim.state.rebuilding import StandIns, not_rebuilt

Place = tuple[str, str, str, str]
"""A module, a name in it, and the module and name of the object's class. Without a module, the object is new."""
_CONTAINERS = (list, dict, set)
_WITHOUT_PLACE = (*ATOMS, type, FunctionType, ModuleType)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class of Python


class Places:
    def __init__(self) -> None:
        self._looked_at, self._modules = 0, list[ModuleType]()

    def look(self) -> dict[int, Place]:
        """By the identities of the objects, as they are now."""
        if len(sys.modules) != self._looked_at:
            self._looked_at = len(sys.modules)
            modules = [one for one in tuple(sys.modules.values()) if type(one) is ModuleType]
            self._modules = [one for one in modules if own_module(one) is not None]
        return {
            id(value): (module.__name__, name, type(value).__module__, type(value).__qualname__)
            for module in self._modules
            for name, value in tuple(vars(module).items())
            if not (name.startswith("__") or isinstance(value, _WITHOUT_PLACE)) and can_be_taken(type(value))
        }


PLACES = Places()


def new_place(obj: Any) -> Place:
    return "", "", type(obj).__module__, type(obj).__qualname__


def can_be_taken(kind: Any) -> bool:
    """Whether it is a class by which the other kernel can make an empty instance."""
    if kind in _CONTAINERS:
        return True
    if kind.__module__ == "__main__" or not all(one.__flags__ & _HEAP_TYPE for one in kind.__mro__[:-1]):
        return False
    return getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind


def take(
    places: Iterable[Place], numbering: Numbering, loaded: frozenset[str], stand_ins: StandIns | None
) -> list[Any]:
    """The objects for these places, before their contents arrive. `stand_ins` replace those of missing classes.

    Objects of modules that were `loaded` keep their contents: the sender did not have them.
    """
    taken: list[Any] = []
    for module, name, *of_class in places:
        try:
            kind = class_of(*of_class)
        except Exception as error:
            if stand_ins is None:
                raise
            taken.append(stand_ins.new(not_rebuilt(of_class[1], error)))
            continue
        found = None
        if module and module not in loaded:
            with suppress(Exception):  # the module cannot be imported here
                found = vars(importlib.import_module(module)).get(name)
        is_free = numbering.number(found) is None and not any(found is one for one in taken)
        taken.append(found if type(found) is kind and is_free else new(kind))
    return taken


def class_of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def new(kind: Any) -> Any:
    return kind() if kind in _CONTAINERS else object.__new__(kind)
