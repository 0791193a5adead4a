"""Which kind claims a type. `Kinds` reads two tables from top to bottom for the first object of each type.

Between the two tables, it asks `extended.py` whether the class extends a class of a library; that needs the object.

**Invariant:** the first claim wins, but the order matters only for the claims in `PRECEDES`; any other type has at most
one claim. `tests/state/test_claims.py` checks this with the types of all libraries there are.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import pathlib
import re
import types
import uuid
from collections.abc import Callable

from baton_shim.state.kinds.archives import ArchiveKind, is_archive_type
from baton_shim.state.kinds.arrays import (
    ArrayKind,
    RecordKind,
    TypeKind,
    is_array_type,
    is_dtype_type,
    is_number_type,
    is_plain_array_type,
    is_record_type,
)
from baton_shim.state.kinds.arrow import ArrowBufferKind, ArrowKind, is_arrow_type, is_buffer_type
from baton_shim.state.kinds.base import Fixed, Kind, imported
from baton_shim.state.kinds.c_data import CDataKind, is_c_data_type
from baton_shim.state.kinds.classes import MemberKind, is_member_type
from baton_shim.state.kinds.code import ClassKind, is_class_type
from baton_shim.state.kinds.compiled import CompiledKind, is_compiled_type
from baton_shim.state.kinds.containers import BytesKind, is_bytes_type
from baton_shim.state.kinds.descriptors import DescriptorKind, is_descriptor_type
from baton_shim.state.kinds.extended import base_of
from baton_shim.state.kinds.figures import (
    FigureKind,
    RegistryKind,
    TransformKind,
    is_figure_type,
    is_registry_type,
    is_transform_type,
)
from baton_shim.state.kinds.frames import (
    ArrowColumnKind,
    BlockKind,
    FrameKind,
    OwnersKind,
    SeriesManagerKind,
    WholeKind,
    is_arrow_column_type,
    is_block_type,
    is_frame_type,
    is_optimizer_type,
    is_owners_type,
    is_series_manager_type,
)
from baton_shim.state.kinds.images import ImageKind, is_image_type
from baton_shim.state.kinds.instances import ExceptionKind, InstanceKind, is_exception_type
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
from baton_shim.state.kinds.libraries import CFunctionKind, LibraryKind, is_function_type, is_library_type
from baton_shim.state.kinds.limits import LimitsKind, is_limits_type
from baton_shim.state.kinds.loaders import LoaderKind, is_loader_type
from baton_shim.state.kinds.reduced import ReducedKind
from baton_shim.state.kinds.references import ReferenceKind, is_reference_type
from baton_shim.state.kinds.scalers import ScalerKind, is_scaler_type
from baton_shim.state.kinds.tensorflow import (
    StrategyKind,
    TensorFlowVariableKind,
    TracedKind,
    TraceKind,
    is_strategy_type,
    is_trace_type,
    is_traced_type,
    is_variable_type,
)
from baton_shim.state.kinds.tensors import GeneratorKind, TensorKind, is_generator_type, is_tensor_type
from baton_shim.state.kinds.traits import TraitsKind, is_traits_type
from baton_shim.state.kinds.trees import DecisionTreeKind, SearchTreeKind, is_decision_tree_type, is_search_tree_type
from baton_shim.state.kinds.ufuncs import UfuncKind, is_ufunc_type

_IMMUTABLE: tuple[type, ...] = (
    *(int, float, complex, str, bytes, type(None), range, slice, tuple, frozenset, enum.Enum, property),
    *(classmethod, staticmethod, types.BuiltinFunctionType, types.MethodType, types.CodeType),
    *(types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType, types.GetSetDescriptorType),
    *(types.MemberDescriptorType, types.ClassMethodDescriptorType, types.GenericAlias, types.UnionType),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal, fractions.Fraction),
    *(uuid.UUID, pathlib.PurePath, re.Pattern, type(Ellipsis), type(NotImplemented)),
)


def is_immutable_type(kind: type) -> bool:
    return issubclass(kind, _IMMUTABLE) and not has_attributes(kind)


def has_attributes(kind: type) -> bool:
    """A `class Metres(float)` may have attributes, although its value is fixed."""
    plain = issubclass(kind, (int, float, complex, str, bytes, tuple, frozenset)) or kind.__module__ == "__main__"
    return plain and kind.__dictoffset__ != 0 and base_of(kind) is not object and not issubclass(kind, enum.Enum)


def is_parsed_page_type(kind: type) -> bool:
    """Its own pickling parses the text again, into new tags."""
    return issubclass(kind, imported("bs4", "BeautifulSoup"))


Claim = Callable[[type], bool]
Claims = tuple[tuple[type[Kind], Claim], ...]
OF_LIBRARIES: Claims = (
    (ClassKind, is_class_type),
    (ArrayKind, is_plain_array_type),
    (ReducedKind, is_array_type),
    (TensorKind, is_tensor_type),
    (GeneratorKind, is_generator_type),
    (OwnersKind, is_owners_type),
    (BlockKind, is_block_type),
    (SeriesManagerKind, is_series_manager_type),
    (ArrowColumnKind, is_arrow_column_type),
    (FrameKind, is_frame_type),
    (WholeKind, is_optimizer_type),
    (ScalerKind, is_scaler_type),
    (LoaderKind, is_loader_type),
    (FigureKind, is_figure_type),
    (RegistryKind, is_registry_type),
    (TransformKind, is_transform_type),
    (ImageKind, is_image_type),
    (TraitsKind, is_traits_type),
    (JittedKind, is_jitted_type),
    (JaxArrayKind, is_jax_array_type),
    (SourceKind, is_source_type),
    (ArchiveKind, is_archive_type),
    (SearchTreeKind, is_search_tree_type),
    (DecisionTreeKind, is_decision_tree_type),
    (ArrowBufferKind, is_buffer_type),
    (ArrowKind, is_arrow_type),
    (RecordKind, is_record_type),
    (TypeKind, is_dtype_type),
    (Fixed, is_number_type),
    (CompiledKind, is_compiled_type),
    (LimitsKind, is_limits_type),
    (UfuncKind, is_ufunc_type),
    (BytesKind, is_bytes_type),
    (MemberKind, is_member_type),
    (ExceptionKind, is_exception_type),
)
OF_PYTHON: Claims = (
    (DescriptorKind, is_descriptor_type),
    (Fixed, is_immutable_type),
    (ReferenceKind, is_reference_type),
    (IteratorKind, is_iterator_type),
    (LibraryKind, is_library_type),
    (CFunctionKind, is_function_type),
    (CDataKind, is_c_data_type),
    (TensorFlowVariableKind, is_variable_type),
    (TracedKind, is_traced_type),
    (TraceKind, is_trace_type),
    (StrategyKind, is_strategy_type),
    (KerasKind, is_keras_type),
    (InstanceKind, is_parsed_page_type),
)
PRECEDES: frozenset[tuple[Claim, Claim]] = frozenset(
    (
        (is_plain_array_type, is_array_type),
        (is_record_type, is_number_type),  # a record is a scalar that can be changed
        (is_number_type, is_immutable_type),  # `numpy.float64` derives from `float`
        (is_descriptor_type, is_immutable_type),  # a class of its own may have attributes
        (is_member_type, is_immutable_type),  # an `IntEnum` of the notebook
    )
)
"""Pairs of claims on the same types, of which the first must come first in the tables."""
