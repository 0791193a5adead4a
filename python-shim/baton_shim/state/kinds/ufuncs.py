"""Universal functions that numpy makes from a Python function; `np.vectorize` keeps one, too.

numpy pickles every universal function by name, which only its own ones have.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

from baton_shim.state.kinds.base import Here, Kind, State, imported


class UfuncKind(Kind):
    name = "ufunc"

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new,)

    def reduce(self, obj: Any) -> Any:
        function = function_of(obj)
        return None if function is None else (self._anchors[0], (function, obj.nin, obj.nout, obj.identity))

    def new(self, function: Callable[..., Any], inputs: int, outputs: int, identity: Any) -> Any:
        import numpy

        # Without an identity, numpy makes another function than with the identity None.
        return numpy.frompyfunc(function, inputs, outputs, **{} if identity is None else {"identity": identity})

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return (function_of(obj), obj.identity)


def function_of(obj: Any) -> Any:
    """The function that was given to `np.frompyfunc`. numpy shows it only to the garbage collector, as the first."""
    return gc.get_referents(obj)[0] if obj.__name__.endswith(" (vectorized)") else None


def is_ufunc_type(kind: type) -> bool:
    return issubclass(kind, imported("numpy", "ufunc"))
