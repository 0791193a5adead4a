"""Instances of libraries whose classes refuse to pickle them or to make them without arguments.

Modules of torch with parametrizations refuse, since their class is made at run time; here classes travel, too.
What `jax.custom_jvp` and its like make wants its function when it is made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from baton_shim.state.kinds.base import State
from baton_shim.state.kinds.instances import AttributesKind, found_by

_PARAMETRIZED = "torch.nn.utils.parametrize"
_DERIVATIVES = "jax._src.custom_derivatives"


class BareKind(AttributesKind):
    """Attributes in an instance that nobody initialised; one that a library has under a name is that."""

    name = "bare"

    def __init__(self, here: Any) -> None:
        super().__init__(here)
        self._anchors = (self.new,)

    def reduce(self, obj: Any) -> Any:
        return found_by(obj) or (self._anchors[0], (type(obj),), dict(vars(obj)))

    def new(self, kind: Any) -> Any:
        return object.__new__(kind)

    def read(self, obj: Any) -> State:
        return None if found_by(obj) else super().read(obj)

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return () if state is None else super().parts(obj, state)


def is_bare_type(kind: type) -> bool:
    if kind.__module__ == _PARAMETRIZED:
        return getattr(sys.modules[_PARAMETRIZED], kind.__name__, None) is not kind
    return kind.__module__ == _DERIVATIVES and kind.__dictoffset__ != 0
