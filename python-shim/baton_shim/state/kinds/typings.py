"""Variables of types and new types of the notebook. `typing` pickles them by names that mean nothing elsewhere."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

from baton_shim.state.kinds.base import Here, Kind, State

TYPINGS: tuple[type, ...] = (typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple, typing.NewType)
_OPTIONS = ("bound", "covariant", "contravariant", "infer_variance")


class TypingKind(Kind):
    name = "typing"
    blind = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.make,)

    def reduce(self, obj: Any) -> Any:
        if obj.__module__ != "__main__":
            return None
        return self._anchors[0], (type(obj), obj.__name__, *said(obj))

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        arguments, options = said(obj)
        yield from arguments
        yield from options.values()

    def make(self, kind: Any, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        made = kind(name, *arguments, **options)
        made.__module__ = "__main__"
        return made


def said(obj: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """With what it was made, besides its name."""
    if isinstance(obj, typing.NewType):
        return (obj.__supertype__,), {}
    options = {name: getattr(obj, f"__{name}__") for name in _OPTIONS if hasattr(obj, f"__{name}__")}
    if getattr(obj, "has_default", bool)():
        options["default"] = obj.__default__
    return getattr(obj, "__constraints__", ()), options
