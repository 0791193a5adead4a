"""Functions that `jax.jit` made: jax makes them anew of the function and the options."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from baton_shim.state.kinds.base import Here, imported
from baton_shim.state.kinds.frames import WholeKind

_MAKER = "jax._src.pjit"


def is_jitted_type(kind: type) -> bool:
    return kind is imported("jaxlib._jax", "PjitFunction") and hasattr(sys.modules.get(_MAKER), "_cpp_pjit")


class JittedKind(WholeKind):
    """Its own pickling forgets its attributes, such as `__name__` and `__wrapped__`, and copies jax's own code."""

    name = "jitted function"

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.make, self.set_attributes)

    def reduce(self, obj: Any) -> Any:
        make, set_attributes = self._anchors
        return make, (obj._fun, obj._jit_info), self.lasting(obj), None, None, set_attributes

    def make(self, function: Any, options: Any) -> Any:
        return importlib.import_module(_MAKER)._cpp_pjit(function, options)
