"""Objects in global variables of the student's own modules. Module and variable name tell the other kernel which of its
own objects is meant.

Such an object is sent like a change of the other kernel's own one, because the module there may refer to it in other
ways than by this name, such as a default argument. A new object takes its place if the other kernel holds an object of
another type there, or one that is known already.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import is_
from types import FunctionType, ModuleType
from typing import Any

from baton_shim.base.closure import own_module
from baton_shim.base.examine import is_a, made_in_notebook, of_type
from baton_shim.state.kinds.base import ATOMS
from baton_shim.state.kinds.variables import Import, Variable, Variables
from baton_shim.state.numbering import Numbering
from baton_shim.state.rebuilding import StandIns

Names = tuple[tuple[str, str], ...]
"""Modules, each with the name of a variable."""
Place = tuple[Names, str, str]
"""The variables that hold an object, and the module and name of its class. Without variables, the object is new."""
_CONTAINERS = (list, dict, set)
_WITHOUT_PLACE = (*ATOMS, type, FunctionType, ModuleType)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class of Python


class Places:
    def __init__(self) -> None:
        self._looked_at: tuple[Any, ...] = ()
        self._modules: list[ModuleType] = []

    def look(self) -> dict[int, Place]:
        """By the identities of the objects, as they are now."""
        now = tuple(sys.modules.values())
        if len(now) != len(self._looked_at) or not all(map(is_, now, self._looked_at)):
            self._looked_at = now
            self._modules = [one for one in now if type(one) is ModuleType and own_module(one) is not None]
        found: dict[int, Place] = {}
        for module in self._modules:
            for name, value in tuple(vars(module).items()):
                if not name.startswith("__") and may_have_place(value):
                    others = found[id(value)][0] if id(value) in found else ()
                    found[id(value)] = ((*others, (module.__name__, name)), *name_of_class(value))
        return found


PLACES = Places()


def new_place(obj: Any) -> Place:
    return (), *name_of_class(obj)


def name_of_class(obj: Any) -> tuple[str, str]:
    return of_type(type(obj), "__module__"), of_type(type(obj), "__qualname__")


def may_have_place(value: Any) -> bool:
    """Whether the other kernel can make an empty instance of its class."""
    kind = type(value)
    if is_container(kind):
        return True
    if is_a(value, *_WITHOUT_PLACE) or made_in_notebook(kind):
        return False
    if not all(of_type(one, "__flags__") & _HEAP_TYPE for one in of_type(kind, "__mro__")[:-1]):  # a class of C
        return False
    module, name = name_of_class(value)
    try:
        return getattr(sys.modules[module], name) is kind
    except Exception:  # it is not found by its name
        return False


def used_first(places: list[Place], unknown: Iterable[Any]) -> list[Place]:
    """The same places. Variables of modules whose code is new in the message come first: it will be imported anyway."""
    if all(len(names) < 2 for names, *_ in places):
        return places
    used = set(map(module_of, unknown))
    return [(tuple(sorted(names, key=lambda one: one[0] not in used)), module, kind) for names, module, kind in places]


def module_of(obj: Any) -> str | None:
    if type(obj) in (Import, Variable):
        obj = obj.among
    return obj.module if type(obj) is Variables else own_module(obj)


class Taken:
    """The objects for the places of one message, before their contents arrive."""

    def __init__(
        self, places: Iterable[Place], numbering: Numbering, loaded: frozenset[str], stand_ins: StandIns | None
    ) -> None:
        """`loaded`: see `held`. `stand_ins` replace objects of missing classes."""
        self.objects: list[Any] = []
        self._own = set[int]()
        for names, module, of_class in places:
            try:
                kind = class_of(module, of_class)
            except Exception as error:
                if stand_ins is None:
                    raise
                self.objects.append(stand_ins.absent(module, of_class, error))
                continue
            free = (one for one in held(names, loaded) if type(one) is kind and numbering.number(one) is None)
            own = next((one for one in free if id(one) not in self._own), None)
            if own is not None:
                self._own.add(id(own))
            self.objects.append(new(kind) if own is None else own)

    def is_own(self, obj: Any) -> bool:
        """Whether this kernel had the object before the message."""
        return id(obj) in self._own


def held(names: Names, loaded: frozenset[str]) -> Iterator[Any]:
    """What these variables hold here. No module is imported if one that has been imported already will do.

    Objects of modules that were `loaded` keep their contents: the sender did not have them.
    """
    if loaded.isdisjoint(module for module, _ in names):
        for name, variable in sorted(names, key=lambda one: one[0] not in sys.modules):
            found = None
            with suppress(Exception, SystemExit):  # the module cannot be imported here
                found = vars(importlib.import_module(name)).get(variable)
            yield found


def is_container(kind: type) -> bool:
    return any(kind is one for one in _CONTAINERS)


def class_of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def new(kind: Any) -> Any:
    return kind() if is_container(kind) else object.__new__(kind)
