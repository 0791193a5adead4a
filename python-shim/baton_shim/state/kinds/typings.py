"""Type variables, new types and type aliases of the notebook. Pickled by name, they would mean nothing elsewhere."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

from baton_shim.state.kinds.base import Here, Kind, State

_ALIAS: Any = getattr(typing, "TypeAliasType", ())  # created by `type Name = ...` from Python 3.12 on
TYPINGS: tuple[type, ...] = (
    *(typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple, typing.NewType),
    *((_ALIAS,) if _ALIAS else ()),
)
_OPTIONS = ("bound", "covariant", "contravariant", "infer_variance")


class TypingKind(Kind):
    name = "typing"
    blind = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.make, self.make_alias, self.set_value, self.make_generic_alias)
        self._values: dict[int, list[Any]] = {}  # values of aliases that are being created

    def reduce(self, obj: Any) -> Any:
        if not is_ours(obj):
            return None
        make, make_alias, set_value, make_generic_alias = self._anchors
        if not isinstance(obj, _ALIAS):
            return make, (type(obj), obj.__name__, obj.__module__, *said(obj))
        if not obj.__type_params__:
            return make_alias, (obj.__name__,), obj.__value__, None, None, set_value
        if contains(obj.__value__, obj):
            raise TypeError("it has parameters and contains itself, and Python creates such aliases only from source")
        return make_generic_alias, (obj.__name__, obj.__value__, obj.__type_params__)

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        if isinstance(obj, _ALIAS):
            yield from obj.__type_params__
            try:
                yield obj.__value__
            except Exception:  # it uses a name that is not bound yet; the pickler gets the same error
                pass
            return
        arguments, options = said(obj)
        yield from arguments
        yield from options.values()

    def make(self, kind: Any, name: str, module: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        made = kind(name, *arguments, **options)
        made.__module__ = module
        return made

    def make_alias(self, name: str) -> Any:
        """Its value may contain the alias itself, and so is set afterwards."""
        value: list[Any] = []
        made = in_main(f"type {name} = value[0]", name, {"value": value})
        self._values[id(made)] = value
        return made

    def set_value(self, alias: Any, value: Any) -> None:
        self._values.pop(id(alias)).append(value)

    def make_generic_alias(self, name: str, value: Any, parameters: tuple[Any, ...]) -> Any:
        source = "made = new(name, value, type_params=parameters)"
        return in_main(source, "made", {"new": _ALIAS, "name": name, "value": value, "parameters": parameters})


def is_ours(obj: Any) -> bool:
    """Whether it is the notebook's. A parameter in `def f[T]()` claims to be in `typing`, which lacks it."""
    of_typing = obj.__module__ == "typing"
    return obj.__module__ == "__main__" or (of_typing and getattr(typing, obj.__name__, None) is not obj)


def in_main(source: str, name: str, names: dict[str, Any]) -> Any:
    """Runs the source and returns what it bound to the name. An alias belongs to the module whose code created it."""
    scope = {"__name__": "__main__", **names}
    exec(source, scope)
    return scope[name]


def contains(value: Any, alias: Any) -> bool:
    """Whether a type contains an alias, directly or through other aliases."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if part is alias:
            return True
        if id(part) not in seen and not isinstance(part, type):
            seen.add(id(part))
            waiting += [*getattr(part, "__args__", ()), getattr(part, "__origin__", None)]
            if isinstance(part, _ALIAS):
                waiting.append(part.__value__)
            elif isinstance(part, list):  # the parameters of a Callable
                waiting += part
    return False


def said(obj: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with which it was created, besides its name."""
    if isinstance(obj, typing.NewType):
        return (obj.__supertype__,), {}
    options = {name: getattr(obj, f"__{name}__") for name in _OPTIONS if hasattr(obj, f"__{name}__")}
    if getattr(obj, "has_default", bool)():
        options["default"] = obj.__default__
    return getattr(obj, "__constraints__", ()), options
