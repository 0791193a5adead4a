"""Functions that numba compiles. Each kernel compiles them for itself.

numba's own pickling copies the Python function together with the values that it uses. For what types a function of
elements (`numba.vectorize`) has been compiled decides the type of its results, so the other kernel compiles it for the
same types.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from baton_shim.state.kinds.base import Here, Kind, State, imported


class CompiledKind(Kind):
    name = "compiled"
    changes = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new,)

    def reduce(self, obj: Any) -> Any:
        return self._anchors[0], (type(obj), obj._reduce_states())

    def new(self, kind: Any, states: dict[str, Any]) -> Any:
        return kind._rebuild(**states)

    def read(self, obj: Any) -> State:
        return tuple(obj._dispatcher.overloads) if is_of_elements(type(obj)) else None

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return (obj._dispatcher if is_of_elements(type(obj)) else obj.py_func,)

    def apply(self, obj: Any, content: Any) -> None:
        for types in content or ():
            if types not in obj._dispatcher.overloads:
                obj.add(types)


def is_compiled_type(kind: type) -> bool:
    """Whether it is one of them, or the compiler of a function of elements."""
    compiler = imported("numba.np.ufunc.ufuncbuilder", "UFuncDispatcher")
    return is_of_elements(kind) or issubclass(kind, (imported("numba.core.dispatcher", "Dispatcher"), compiler))


def is_of_elements(kind: type) -> bool:
    return issubclass(kind, imported("numba.np.ufunc.dufunc", "DUFunc"))
