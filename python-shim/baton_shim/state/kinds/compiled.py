"""Functions that numba compiles. Each kernel compiles them for itself.

numba's own pickling copies the Python function together with the values that it uses. For what types a function of
elements (`numba.vectorize`) has been compiled decides the type of its results, so the other kernel compiles it for the
same types. It does so when the names that the function uses are bound; if that fails, each call compiles it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from baton_shim.state.kinds.base import Here, Kind, State, imported


class CompiledKind(Kind):
    name = "compiled"
    changes = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new, self.apply)

    def reduce(self, obj: Any) -> Any:
        new, apply = self._anchors
        states = obj._reduce_states()
        if not is_of_elements(type(obj)):
            return new, (type(obj), states)
        return new, (type(obj), states | {"siglist": [], "frozen": False}), self.read(obj), None, None, apply

    def new(self, kind: Any, states: dict[str, Any]) -> Any:
        return kind._rebuild(**states)

    def read(self, obj: Any) -> State:
        if not is_of_elements(type(obj)):
            return None
        states = obj._reduce_states()
        return tuple(states["siglist"]), states["frozen"]

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return (obj._dispatcher if is_of_elements(type(obj)) else obj.py_func,)

    def apply(self, obj: Any, content: Any) -> None:
        if content is not None:
            self.here.once_bound.append(partial(compile_for, obj, *content))


def compile_for(function: Any, signatures: Iterable[Any], frozen: bool) -> None:
    """`frozen`: whether it accepts only these types from then on."""
    for types in signatures:
        if types not in function._dispatcher.overloads:
            function.add(types)
    if frozen:
        function.disable_compile()


def is_compiled_type(kind: type) -> bool:
    """Whether it is one of them, or the compiler of a function of elements."""
    compiler = imported("numba.np.ufunc.ufuncbuilder", "UFuncDispatcher")
    return is_of_elements(kind) or issubclass(kind, (imported("numba.core.dispatcher", "Dispatcher"), compiler))


def is_of_elements(kind: type) -> bool:
    return issubclass(kind, imported("numba.np.ufunc.dufunc", "DUFunc"))
