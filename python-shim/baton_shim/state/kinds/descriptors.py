"""Instances of classes that derive from `property`, `classmethod` or `staticmethod`, as in `class shared(property)`.

The base cannot be pickled itself, and its functions can be set again only by its constructor.

**Invariant:** no code of the class runs, only that of the base.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from baton_shim.state.kinds.base import State
from baton_shim.state.kinds.instances import InstanceKind, pickles_ordinarily

BASES: tuple[type, ...] = (property, classmethod, staticmethod)


def is_descriptor_type(kind: type) -> bool:
    return issubclass(kind, BASES) and kind not in BASES and pickles_ordinarily(kind)


class DescriptorKind(InstanceKind):
    name = "descriptor"

    def reduce(self, obj: Any) -> Any:
        new, apply = self._anchors
        return new, (type(obj), None), self.read(obj), None, None, apply

    def new(self, kind: Any, longest: int | None) -> Any:
        return base_of(kind).__new__(kind)

    def read(self, obj: Any) -> State:
        return *super().read(obj)[:3], functions_of(obj)

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        *attributes, functions = state
        yield from super().parts(obj, (*attributes, ()))
        yield from functions

    def apply(self, obj: Any, content: Any) -> None:
        *attributes, functions = content
        with contextlib.suppress(AttributeError):  # after the functions it sets `__doc__`, which slots may not allow
            base_of(type(obj)).__init__(obj, *functions)
        super().apply(obj, (*attributes, ()))


def base_of(kind: type) -> Any:
    return next(base for base in BASES if issubclass(kind, base))


def functions_of(obj: Any) -> tuple[Any, ...]:
    """The arguments of the base's constructor."""
    base = base_of(type(obj))
    if base is not property:
        return (vars(base)["__func__"].__get__(obj),)
    get, *others, text = (vars(property)[name].__get__(obj) for name in ("fget", "fset", "fdel", "__doc__"))
    if text is None and (own := getattr(obj, "__doc__", None)) != getattr(get, "__doc__", None):
        text = own  # from Python 3.12 on, it is an attribute
    return get, *others, text
