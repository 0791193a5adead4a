"""Finds the kind of an object, which knows how to send, compare and update it (`base.py`).

In: any object. Out: a `Kind`, decided once for each type. Other modules of this folder each define some kinds.

**Invariant:** types of libraries that are not loaded cost nothing.
"""

from __future__ import annotations

import array
import decimal
import functools
import random
import re
import struct
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from baton_shim.base.examine import is_a
from baton_shim.base.locks import LOCKS
from baton_shim.state.kinds.arrays import ArrayKind
from baton_shim.state.kinds.base import ATOMS, Fixed, Here, Kind
from baton_shim.state.kinds.caches import CachedFunctionKind
from baton_shim.state.kinds.claims import OF_LIBRARIES, OF_PYTHON
from baton_shim.state.kinds.code import CellKind, ClassKind, FunctionKind
from baton_shim.state.kinds.containers import BytesKind, DictKind, ListKind, SetKind
from baton_shim.state.kinds.extended import ExtendedKind, is_extended
from baton_shim.state.kinds.files import FileKind
from baton_shim.state.kinds.frames import OwnersKind
from baton_shim.state.kinds.instances import (
    AttributesKind,
    InstanceKind,
    holds_contents,
    pickles_ordinarily,
    slot_names,
)
from baton_shim.state.kinds.leaves import LeafKind, is_leaf
from baton_shim.state.kinds.libraries import LibraryKind
from baton_shim.state.kinds.locks import LockKind
from baton_shim.state.kinds.matches import MatchKind
from baton_shim.state.kinds.memory_views import MemoryViewKind
from baton_shim.state.kinds.reduced import DecimalContextKind, ReducedKind
from baton_shim.state.kinds.references import (
    DICT_ITERATORS,
    DICT_VIEWS,
    LIST_ITERATORS,
    MARK_TYPES,
    PROXIES,
    SORT_KEY,
    DictIteratorKind,
    ListIteratorKind,
    ModuleKind,
    ReferenceKind,
    StandInKind,
    UnsendableKind,
)
from baton_shim.state.kinds.singletons import SingletonKind, may_be_singleton
from baton_shim.state.kinds.tensors import TensorKind
from baton_shim.state.kinds.typings import TYPINGS, TypingKind
from baton_shim.state.kinds.variables import Import, ImportKind, Variable, VariableKind, Variables, VariablesKind
from baton_shim.state.kinds.weak import WEAK_COLLECTIONS, WeakCollectionKind
from baton_shim.state.refusal import (
    FILES,
    StandIn,
    bound_to_page,
    cannot_leave,
    describe_failure,
    may_be_guilty,
    why_without,
)

__all__ = ["ATOMS", "Here", "Kind", "Kinds", "is_leaf"]

_REFERENCES: tuple[type, ...] = (
    *(*DICT_VIEWS, *PROXIES, *MARK_TYPES),
    *(weakref.ref, types.MappingProxyType),
    *(random.SystemRandom, struct.Struct, re.Scanner, SORT_KEY),  # type: ignore[attr-defined]
)
_NAMED = (types.FunctionType, types.BuiltinFunctionType, functools._lru_cache_wrapper)


_MOST_EXAMINED = 10_000  # objects for which it is decided whether the value of a module's variable can be sent


class Kinds:
    """All kinds of one table. `missing`: modules that the other end lacks, each with its package.

    `for_later`: the other end is a kernel that starts later.
    """

    def __init__(self, here: Here, missing: Mapping[str, str], *, for_later: bool = False) -> None:
        self._missing, self._for_later = missing, for_later
        self.list, self.dict, self.set, self.bytes = ListKind(here), DictKind(here), SetKind(here), BytesKind(here)
        self.leaf, self.attributes, self.instance = LeafKind(here), AttributesKind(here), InstanceKind(here)
        self.reduced, self.extended, self.fixed = ReducedKind(here), ExtendedKind(here), Fixed(here)
        self.function, self.cell, self.cached = FunctionKind(here), CellKind(here), CachedFunctionKind(here)
        self.reference, self.weak, self.typing = ReferenceKind(here), WeakCollectionKind(here), TypingKind(here)
        self.dict_iterator, self.list_iterator = DictIteratorKind(here), ListIteratorKind(here)
        self.array, self.tensor, self.owners = ArrayKind(here), TensorKind(here), OwnersKind(here)
        self.type, self.library, self.singleton = ClassKind(here), LibraryKind(here), SingletonKind(here)
        self.stand_in, self.decimal_context, self.match = StandInKind(here), DecimalContextKind(here), MatchKind(here)
        self.lock, self.file, self.memory_view = LockKind(here), FileKind(here), MemoryViewKind(here)
        self.variables = VariablesKind(here, own=not for_later)
        self.variable = VariableKind(here, self.variables, self._why_it_stays)
        self.imported = ImportKind(here, self.variables)
        self.function.variables = self.type.variables = self.variables
        self.module = ModuleKind(here, self.variables)
        self.unsendable = UnsendableKind(here, self.why_not)
        self.type.functions_of = self.library.anchors[3]
        self.by_name: dict[str, Kind] = {kind.name: kind for kind in vars(self).values() if isinstance(kind, Kind)}
        for claimed, _ in (*OF_LIBRARIES, *OF_PYTHON):
            if claimed.name not in self.by_name:
                self.by_name[claimed.name] = claimed(here)
        self._by_type: dict[type, Kind] = {
            list: self.list,
            dict: self.dict,
            set: self.set,
            bytearray: self.bytes,
            array.array: self.bytes,
            memoryview: self.memory_view,
            types.FunctionType: self.function,
            types.CellType: self.cell,
            functools._lru_cache_wrapper: self.cached,
            StandIn: self.stand_in,
            Import: self.imported,
            Variable: self.variable,
            Variables: self.variables,
            types.ModuleType: self.module,
            decimal.Context: self.decimal_context,
            re.Match: self.match,
            **dict.fromkeys(_REFERENCES, self.reference),
            **dict.fromkeys(LOCKS, self.lock),
            **dict.fromkeys(FILES, self.file),
            **dict.fromkeys(DICT_ITERATORS, self.dict_iterator),
            **dict.fromkeys(LIST_ITERATORS, self.list_iterator),
            **dict.fromkeys(WEAK_COLLECTIONS, self.weak),
            **dict.fromkeys(TYPINGS, self.typing),
        }

        self._of_libraries = [(claims, self.by_name[kind.name]) for kind, claims in OF_LIBRARIES]
        self._of_python = [(claims, self.by_name[kind.name]) for kind, claims in OF_PYTHON]
        self._otherwise: dict[type, Kind] = {}  # the kind of other objects that have a singleton's type
        self._innocent: set[type] = set(PROXIES)  # proxies must not be asked: they answer for their targets

    def why_not(self, obj: object) -> tuple[str, str] | None:
        """The reason that this very object cannot leave its process, and what to do about it."""
        if self._missing and (package := self._missing_package(obj)) is not None:
            return why_without(package)
        if type(obj) in self._innocent:
            return None
        try:
            reason = cannot_leave(obj) or (bound_to_page(obj) if self._for_later else None)
            if reason is None and not may_be_guilty(obj):
                self._innocent.add(type(obj))
        except Exception as error:  # it cannot even be examined
            return describe_failure(obj, error)
        return reason

    def _why_it_stays(self, value: Any) -> str | None:
        """For a module's variable: what its value holds that cannot be sent, within a limit.

        None if nothing is found; empty if the value itself cannot be sent.
        """
        waiting, seen = [value], dict[int, Any]()
        while waiting and len(seen) < _MOST_EXAMINED:
            obj = waiting.pop()
            if type(obj) in ATOMS or id(obj) in seen or is_a(obj, type, types.FunctionType, types.ModuleType):
                continue
            seen[id(obj)] = obj
            reason = self.why_not(obj)
            if reason is None:
                try:
                    kind = self.of(obj)
                    kind.check(obj)
                    waiting += () if is_leaf(obj) else kind.parts(obj, kind.read(obj))
                except Exception as error:
                    reason = describe_failure(obj, error)
            if reason is not None:
                return "" if obj is value else f"holds something that {reason[0]}"
        return None

    def _missing_package(self, obj: Any) -> str | None:
        kind: Any = obj if is_a(obj, type) else type(obj)
        homes = [base.__module__ for base in kind.__mro__]
        if kind is types.ModuleType:
            homes.append(obj.__name__)
        elif kind in _NAMED:
            homes.append(obj.__module__)
        found = (self._missing.get(str(home).partition(".")[0]) for home in homes)
        return next((package for package in found if package), None)

    def anchors(self) -> list[Callable[..., Any]]:
        """The anchors of all kinds, in the same order on both ends."""
        return [function for name in sorted(self.by_name) for function in self.by_name[name].anchors]

    def settle(self) -> None:
        """Called after a message has been read or undone."""
        self.owners.settle()

    def of(self, obj: object) -> Kind:
        """The kind of this object. Never raises."""
        kind = self._by_type.get(type(obj))
        if kind is None:
            try:
                kind = self._otherwise.get(type(obj)) or self._of_type(type(obj), obj)
            except Exception:  # it is sent again whenever it pickles differently
                return self.reduced
            if not may_be_singleton(type(obj)):
                self._by_type[type(obj)] = kind
                return kind
            self._otherwise[type(obj)] = kind
            if self.singleton.is_one(obj):
                return self.singleton
        return kind

    def _of_type(self, kind: type, obj: Any) -> Kind:
        for claims, found in self._of_libraries:
            if claims(kind):
                return found
        if is_extended(obj):
            return self.extended
        for claims, found in self._of_python:
            if claims(kind):
                return found
        if not pickles_ordinarily(kind):
            return self.reduced
        plain = not holds_contents(obj) and not slot_names(kind) and hasattr(obj, "__dict__")
        # An unpickled object has no attributes at first, so its own `__getattr__` may recurse endlessly.
        asks = hasattr(kind, "__getattr__") and not hasattr(kind, "__setstate__")
        return self.attributes if plain and not asks else self.instance
