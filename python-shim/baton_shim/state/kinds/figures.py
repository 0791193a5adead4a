"""matplotlib's figures and registries of callbacks, whose own pickling forgets what belongs to one process.

**Invariant:** what shows a figure at one end, and listens there for clicks and keys, stays when a change arrives.
"""

from __future__ import annotations

from typing import Any

from baton_shim.state.kinds.base import imported
from baton_shim.state.kinds.reduced import ReducedForm, ReducedKind, reduced_form


class FigureKind(ReducedKind):
    name = "matplotlib figure"

    def apply(self, obj: Any, content: Any) -> None:
        way, form = content
        canvas = obj.canvas
        if way == "state":
            form.pop("_restore_to_pylab", None)  # which figures pyplot knows is told apart
        super().apply(obj, content)
        obj.set_canvas(canvas)
        obj._set_dpi(obj._original_dpi * canvas.device_pixel_ratio, forward=False)


class RegistryKind(ReducedKind):
    """Its own pickling forgets also that a colour bar follows its image."""

    name = "matplotlib callbacks"

    def form(self, obj: Any) -> ReducedForm:
        if "changed" in obj.callbacks:
            obj._pickled_cids.update(obj.callbacks["changed"])
        return reduced_form(obj)

    def reduce(self, obj: Any) -> Any:
        self.form(obj)
        return None

    def apply(self, obj: Any, content: Any) -> None:
        staying = [
            (signal, number, function())
            for signal, functions in obj.callbacks.items()
            for number, function in functions.items()
            if number not in obj._pickled_cids
        ]
        super().apply(obj, content)
        numbers = obj._cid_gen
        for signal, number, function in staying:
            if function is not None:
                obj._cid_gen = iter([number])  # by which whoever connected it disconnects it
                obj.connect(signal, function)
        obj._cid_gen = numbers


def is_figure_type(kind: type) -> bool:
    return issubclass(kind, imported("matplotlib.figure", "Figure"))


def is_registry_type(kind: type) -> bool:
    return issubclass(kind, imported("matplotlib.cbook", "CallbackRegistry"))
