"""matplotlib's figures and callback registries, whose own pickling drops what belongs to one process.

**Invariant:** when a change arrives, whatever shows a figure here and receives its clicks and keys is kept.
"""

from __future__ import annotations

import copyreg
import functools
import re
import types
from collections.abc import Iterator
from typing import Any

from baton_shim.state.kinds.base import Here, State, imported
from baton_shim.state.kinds.reduced import ReducedForm, ReducedKind, frozen


class FigureKind(ReducedKind):
    """A figure. Its own pickling drops the canvas, which matters only for windows."""

    name = "matplotlib figure"

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.set_state,)

    def reduce(self, obj: Any) -> Any:
        function, arguments, state, *_ = self.form(obj) or (None, (), None)
        return function, arguments, (state, canvas_type(type(obj.canvas))), None, None, self._anchors[0]

    def set_state(self, obj: Any, content: Any) -> None:
        state, canvas = content
        state.pop("_restore_to_pylab", None)  # the surroundings carry which figures pyplot knows
        obj.__setstate__(state)
        if canvas is not None and type(obj.canvas) is imported("matplotlib.backend_bases", "FigureCanvasBase"):
            canvas(obj)

    def apply(self, obj: Any, content: Any) -> None:
        way, form = content
        canvas = obj.canvas
        if way == "state":
            form[1].pop("_restore_to_pylab", None)
        super().apply(obj, content)
        obj.set_canvas(canvas)
        obj._set_dpi(obj._original_dpi * canvas.device_pixel_ratio, forward=False)


class TransformKind(ReducedKind):
    """A transform node. It caches its result, and an invalid node relies on all nodes above it being invalid, too.

    This would break if a figure's size changed while a change arrives, or if one kernel drew what the other does not
    know.
    """

    name = "matplotlib transform"

    def apply(self, obj: Any, content: Any) -> None:
        super().apply(obj, content)
        obj._invalid = 0
        obj.invalidate()


class RegistryKind(ReducedKind):
    """A registry. Its own pickling drops the notebook's callbacks and colour bars' links, and uses up an id."""

    name = "matplotlib callbacks"

    def form(self, obj: Any) -> ReducedForm:
        callbacks: dict[Any, dict[int, Any]] = {signal: {} for signal in obj.callbacks}
        for signal, number, function in sent_callbacks(obj):
            callbacks[signal][number] = function
        return copyreg.__newobj__, (type(obj),), self._state(obj, callbacks), [], []  # type: ignore[attr-defined]

    def reduce(self, obj: Any) -> Any:
        form = self.form(obj)
        return form and form[:3]

    def read(self, obj: Any) -> State:
        """A bound method is a new object at each access, so its two parts are compared."""
        callbacks = ((signal, number, *parts_of(function)) for signal, number, function in sent_callbacks(obj))
        return "state", frozen((type(obj), (), self._state(obj, tuple(callbacks))), None)

    def _state(self, obj: Any, callbacks: Any) -> dict[str, Any]:
        _, (number,) = obj._cid_gen.__reduce__()
        return {**vars(obj), "callbacks": callbacks, "_func_cid_map": None, "_cid_gen": number}

    def apply(self, obj: Any, content: Any) -> None:
        moved = {number for _, number, _ in sent_callbacks(obj)}
        staying = [one for one in connected(obj) if one[1] not in moved]
        super().apply(obj, content)
        numbers = obj._cid_gen
        for signal, number, function in staying:
            obj._cid_gen = iter([number])  # the id by which the caller that connected it disconnects it
            obj.connect(signal, function)
        obj._cid_gen = numbers


def connected(registry: Any) -> Iterator[tuple[Any, int, Any]]:
    for signal, functions in registry.callbacks.items():
        for number, reference in functions.items():
            function = reference()
            if function is not None:
                yield signal, number, function


def sent_callbacks(registry: Any) -> Iterator[tuple[Any, int, Any]]:
    for signal, number, function in connected(registry):
        if number in registry._pickled_cids or signal == "changed" or of_notebook(function):
            yield signal, number, function


def parts_of(function: Any) -> tuple[Any, ...]:
    return (function.__self__, function.__func__) if isinstance(function, types.MethodType) else (function,)


def of_notebook(function: Any) -> bool:
    """Includes methods of a list or the like."""
    while isinstance(function, functools.partial):
        function = function.func
    itself = isinstance(function, (types.FunctionType, type))
    owner = function if itself else type(getattr(function, "__self__", function))
    return owner.__module__ in ("__main__", "builtins")


def canvas_type(kind: type) -> type | None:
    """A canvas class that shows no window; those of `inline` and of widgets draw like `agg`."""
    agg = imported("matplotlib.backends.backend_agg", "FigureCanvasAgg")
    if issubclass(kind, agg):
        return agg  # type: ignore[no-any-return]
    return kind if re.fullmatch(r"matplotlib\.backends\.backend_(svg|pdf|ps|cairo|template)", kind.__module__) else None


def is_figure_type(kind: type) -> bool:
    return issubclass(kind, imported("matplotlib.figure", "Figure"))


def is_transform_type(kind: type) -> bool:
    return issubclass(kind, imported("matplotlib.transforms", "TransformNode"))


def is_registry_type(kind: type) -> bool:
    return issubclass(kind, imported("matplotlib.cbook", "CallbackRegistry"))
