"""Finds the kind of an object, which knows how to send, compare and update it (`base.py`).

In: any object. Out: a `Kind`, decided once for each type. Other modules of this folder each define some kinds.

**Invariant:** types of libraries that are not loaded cost nothing.
"""

from __future__ import annotations

import array
import ctypes
import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import random
import re
import struct
import sys
import threading
import types
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from baton_shim.base.locks import LOCKS
from baton_shim.state.kinds.archives import ArchiveKind, is_archive_type
from baton_shim.state.kinds.arrays import ArrayKind, RecordKind, TypeKind, has_plain_memory
from baton_shim.state.kinds.arrow import ArrowBufferKind, ArrowKind, is_arrow_type
from baton_shim.state.kinds.base import ATOMS, Fixed, Here, Kind, imported
from baton_shim.state.kinds.c_data import C_DATA, CDataKind
from baton_shim.state.kinds.caches import CachedFunctionKind
from baton_shim.state.kinds.classes import MemberKind
from baton_shim.state.kinds.code import CellKind, ClassKind, FunctionKind
from baton_shim.state.kinds.compiled import CompiledKind, is_compiled_type
from baton_shim.state.kinds.containers import BytesKind, DictKind, ListKind, SetKind
from baton_shim.state.kinds.descriptors import DescriptorKind, is_descriptor_type
from baton_shim.state.kinds.extended import ExtendedKind, base_of, is_extended
from baton_shim.state.kinds.figures import (
    FigureKind,
    RegistryKind,
    TransformKind,
    is_figure_type,
    is_registry_type,
    is_transform_type,
)
from baton_shim.state.kinds.files import FileKind
from baton_shim.state.kinds.frames import (
    ArrowColumnKind,
    BlockKind,
    FrameKind,
    OwnersKind,
    SeriesManagerKind,
    WholeKind,
    is_optimizer_type,
    pandas_kind,
)
from baton_shim.state.kinds.images import ImageKind, is_image_type
from baton_shim.state.kinds.instances import (
    AttributesKind,
    ExceptionKind,
    InstanceKind,
    holds_contents,
    pickles_ordinarily,
    slot_names,
)
from baton_shim.state.kinds.iterators import IteratorKind, is_iterator_type
from baton_shim.state.kinds.jax import (
    JaxArrayKind,
    JittedKind,
    SourceKind,
    is_jax_array_type,
    is_jitted_type,
    is_source_type,
)
from baton_shim.state.kinds.keras import KerasKind, is_keras_type
from baton_shim.state.kinds.leaves import LeafKind, is_leaf
from baton_shim.state.kinds.libraries import CFunctionKind, LibraryKind, is_function_type
from baton_shim.state.kinds.limits import LimitsKind, is_limits_type
from baton_shim.state.kinds.loaders import LoaderKind, is_loader_type
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
    ReferenceKind,
    StandInKind,
    UnsendableKind,
    is_kernel_stream_type,
)
from baton_shim.state.kinds.scalers import ScalerKind, is_scaler_type
from baton_shim.state.kinds.singletons import SingletonKind, may_be_singleton
from baton_shim.state.kinds.tensorflow import (
    StrategyKind,
    TracedKind,
    TraceKind,
    VariableKind,
    is_strategy_type,
    is_trace_type,
    is_traced_type,
    is_variable_type,
)
from baton_shim.state.kinds.tensors import GeneratorKind, TensorKind, is_generator_type, is_tensor_type
from baton_shim.state.kinds.traits import TraitsKind, is_traits_type
from baton_shim.state.kinds.trees import (
    DecisionTreeKind,
    SearchTreeKind,
    is_decision_tree_type,
    is_search_tree_type,
)
from baton_shim.state.kinds.typings import TYPINGS, TypingKind
from baton_shim.state.kinds.ufuncs import UfuncKind, is_ufunc_type
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

_IMMUTABLE: tuple[type, ...] = (
    *(int, float, complex, str, bytes, type(None), range, slice, tuple, frozenset, enum.Enum, property),
    *(classmethod, staticmethod, types.BuiltinFunctionType, types.MethodType, types.CodeType),
    *(types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType, types.GetSetDescriptorType),
    *(types.MemberDescriptorType, types.ClassMethodDescriptorType, types.GenericAlias, types.UnionType),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal, fractions.Fraction),
    *(uuid.UUID, pathlib.PurePath, re.Pattern, type(Ellipsis), type(NotImplemented)),
)
_REFERENCES: tuple[type, ...] = (
    *(*DICT_VIEWS, *PROXIES, *MARK_TYPES),
    *(weakref.ref, types.ModuleType, types.MappingProxyType),
    *(random.SystemRandom, struct.Struct, re.Scanner, SORT_KEY),  # type: ignore[attr-defined]
)
_NAMED = (types.FunctionType, types.BuiltinFunctionType, functools._lru_cache_wrapper)


class Kinds:
    """All kinds of one table. `missing`: modules that the other end lacks, each with its package.

    `for_later`: the other end is a kernel that starts later.
    """

    def __init__(self, here: Here, missing: Mapping[str, str], *, for_later: bool = False) -> None:
        self._missing, self._for_later = missing, for_later
        self.list, self.dict, self.set, self.bytes = ListKind(here), DictKind(here), SetKind(here), BytesKind(here)
        self.leaf, self.attributes, self.instance = LeafKind(here), AttributesKind(here), InstanceKind(here)
        self.exception, self.reduced, self.function = ExceptionKind(here), ReducedKind(here), FunctionKind(here)
        self.cell, self.type, self.cached = CellKind(here), ClassKind(here), CachedFunctionKind(here)
        self.reference, self.array, self.arrow = ReferenceKind(here), ArrayKind(here), ArrowKind(here)
        self.arrow_buffer = ArrowBufferKind(here)
        self.record, self.dict_iterator, self.weak = RecordKind(here), DictIteratorKind(here), WeakCollectionKind(here)
        self.tensor, self.generator, self.fixed = TensorKind(here), GeneratorKind(here), Fixed(here)
        self.frame, self.block, self.owners = FrameKind(here), BlockKind(here), OwnersKind(here)
        self.whole, self.member, self.arrow_column = WholeKind(here), MemberKind(here), ArrowColumnKind(here)
        self.figure, self.registry, self.image = FigureKind(here), RegistryKind(here), ImageKind(here)
        self.dtype, self.list_iterator = TypeKind(here), ListIteratorKind(here)
        self.series_manager, self.jitted = SeriesManagerKind(here), JittedKind(here)
        self.traits, self.jax_array, self.source = TraitsKind(here), JaxArrayKind(here), SourceKind(here)
        self.search_tree, self.decision_tree = SearchTreeKind(here), DecisionTreeKind(here)
        self.typing, self.singleton = TypingKind(here), SingletonKind(here)
        self.c_data, self.decimal_context = CDataKind(here), DecimalContextKind(here)
        self.iterator, self.stand_in, self.archive = IteratorKind(here), StandInKind(here), ArchiveKind(here)
        self.match, self.transform = MatchKind(here), TransformKind(here)
        self.library, self.c_function, self.ufunc = LibraryKind(here), CFunctionKind(here), UfuncKind(here)
        self.limits, self.compiled, self.extended = LimitsKind(here), CompiledKind(here), ExtendedKind(here)
        self.keras, self.descriptor = KerasKind(here), DescriptorKind(here)
        self.variable, self.traced, self.strategy = VariableKind(here), TracedKind(here), StrategyKind(here)
        self.trace, self.lock, self.file = TraceKind(here), LockKind(here), FileKind(here)
        self.scaler, self.loader = ScalerKind(here), LoaderKind(here)
        self.memory_view = MemoryViewKind(here)
        self.unsendable = UnsendableKind(here, self.why_not)
        self.type.functions_of = self.library.anchors[3]
        self.by_name: dict[str, Kind] = {kind.name: kind for kind in vars(self).values() if isinstance(kind, Kind)}
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

    def _missing_package(self, obj: Any) -> str | None:
        kind = obj if isinstance(obj, type) else type(obj)
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
            except Exception:  # the pickler will find out the reason
                return self.fixed
            if not may_be_singleton(type(obj)):
                self._by_type[type(obj)] = kind
                return kind
            self._otherwise[type(obj)] = kind
            if self.singleton.is_one(obj):
                return self.singleton
        return kind

    def _of_type(self, kind: type, obj: Any) -> Kind:
        if issubclass(kind, type):
            return self.type
        numpy = sys.modules.get("numpy")
        if numpy is not None and issubclass(kind, numpy.ndarray):
            return self.array if has_plain_memory(kind) else self.reduced
        if is_tensor_type(kind):
            return self.tensor
        if is_generator_type(kind):
            return self.generator
        of_pandas = pandas_kind(kind)
        if of_pandas is not None:
            return self.by_name[of_pandas]
        if is_optimizer_type(kind):
            return self.whole
        if is_scaler_type(kind):
            return self.scaler
        if is_loader_type(kind):
            return self.loader
        if is_figure_type(kind):
            return self.figure
        if is_registry_type(kind):
            return self.registry
        if is_transform_type(kind):
            return self.transform
        if is_image_type(kind):
            return self.image
        if is_traits_type(kind):
            return self.traits
        if is_jitted_type(kind):
            return self.jitted
        if is_jax_array_type(kind):
            return self.jax_array
        if is_source_type(kind):
            return self.source
        if is_archive_type(kind):
            return self.archive
        if is_search_tree_type(kind):
            return self.search_tree
        if is_decision_tree_type(kind):
            return self.decision_tree
        if issubclass(kind, imported("pyarrow", "Buffer")):
            return self.arrow_buffer
        if is_arrow_type(kind):
            return self.arrow
        if numpy is not None and issubclass(kind, numpy.void):
            return self.record
        if numpy is not None and issubclass(kind, numpy.dtype):
            return self.dtype
        if numpy is not None and issubclass(kind, numpy.generic):
            return self.fixed
        if is_compiled_type(kind):
            return self.compiled
        if is_limits_type(kind):
            return self.limits
        if is_ufunc_type(kind):
            return self.ufunc
        if issubclass(kind, (array.array, bytearray)):
            return self.bytes
        if issubclass(kind, enum.Enum) and kind.__module__ == "__main__":
            return self.member
        if issubclass(kind, BaseException):
            return self.exception
        if is_extended(obj):
            return self.extended
        if is_descriptor_type(kind):
            return self.descriptor
        if issubclass(kind, _IMMUTABLE) and not _has_attributes(kind):
            return self.fixed
        if issubclass(kind, (types.ModuleType, threading.Thread)) or is_kernel_stream_type(kind):
            return self.reference
        if is_iterator_type(kind):
            return self.iterator
        if issubclass(kind, ctypes.CDLL):
            return self.library
        if is_function_type(kind):
            return self.c_function
        if issubclass(kind, C_DATA):
            return self.c_data
        if is_variable_type(kind):
            return self.variable
        if is_traced_type(kind):
            return self.traced
        if is_trace_type(kind):
            return self.trace
        if is_strategy_type(kind):
            return self.strategy
        if is_keras_type(kind):
            return self.keras
        if issubclass(kind, imported("bs4", "BeautifulSoup")):  # its own pickling parses the text again, into new tags
            return self.instance
        if pickles_ordinarily(kind):
            plain = not holds_contents(obj) and not slot_names(kind) and hasattr(obj, "__dict__")
            # An unpickled object has no attributes at first, so its own `__getattr__` may recurse endlessly.
            asks = hasattr(kind, "__getattr__") and not hasattr(kind, "__setstate__")
            return self.attributes if plain and not asks else self.instance
        return self.reduced


def _has_attributes(kind: type) -> bool:
    """A `class Metres(float)` may have attributes, although its value is fixed."""
    plain = issubclass(kind, (int, float, complex, str, bytes, tuple, frozenset)) or kind.__module__ == "__main__"
    return plain and kind.__dictoffset__ != 0 and base_of(kind) is not object and not issubclass(kind, enum.Enum)
