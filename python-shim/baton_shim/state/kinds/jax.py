"""JAX objects: functions from `jax.jit`, arrays, and the source locations of a program's operations."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import Any

from baton_shim.state.kinds.base import Fixed, Here, State, imported
from baton_shim.state.kinds.frames import WholeKind
from baton_shim.state.kinds.instances import found_by
from baton_shim.state.kinds.reduced import ReducedForm, ReducedKind, reduced_form

_MAKER = "jax._src.pjit"
_CONFIG = "jax._src.config"


def is_jitted_type(kind: type) -> bool:
    return kind is imported("jaxlib._jax", "PjitFunction") and hasattr(sys.modules.get(_MAKER), "_cpp_pjit")


class JittedKind(WholeKind):
    """Its own pickling drops attributes such as `__name__` and `__wrapped__`, and copies JAX's own code."""

    name = "jitted function"

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.make, self.set_attributes)

    def reduce(self, obj: Any) -> Any:
        name = found_by(obj)  # `jax.nn.relu` and the like
        if name is not None:
            return name
        make, set_attributes = self._anchors
        return make, (obj._fun, obj._jit_info), self.lasting(obj), None, None, set_attributes

    def make(self, function: Any, options: Any) -> Any:
        return importlib.import_module(_MAKER)._cpp_pjit(function, options)


class JaxArrayKind(ReducedKind):
    """A JAX array keeps its width, whether or not this kernel already creates 64-bit arrays."""

    name = "JAX array"

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.make,)

    def form(self, obj: Any) -> ReducedForm:
        form = reduced_form(obj)
        return form and (self._anchors[0], (form[0], *form[1]), *form[2:])

    def reduce(self, obj: Any) -> Any:
        function, arguments, *_ = obj.__reduce__()
        return self._anchors[0], (function, *arguments)

    def make(self, function: Any, *arguments: Any) -> Any:
        with importlib.import_module(_CONFIG).enable_x64(True):
            return function(*arguments)


def is_jax_array_type(kind: type) -> bool:
    return kind is imported("jaxlib._jax", "ArrayImpl") and hasattr(sys.modules.get(_CONFIG), "enable_x64")


class SourceKind(Fixed):
    """The location is a traceback of its process, which JAX uses for messages; it is sent as None."""

    name = "JAX source"

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return (obj.name_stack,)

    def reduce(self, obj: Any) -> Any:
        return type(obj), (None, obj.name_stack)


def is_source_type(kind: type) -> bool:
    return kind is imported("jax._src.source_info_util", "SourceInfo")
