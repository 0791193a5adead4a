"""Library classes that their first instance prepares, such as the lexers of pygments.

A metaclass with its own `__call__` may set attributes of the class before it creates an instance. Unpickling does not
call it, so the instance carries what it needs: the attributes that the metaclass sets.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import Any

from baton_shim.state.refusal import StandIn


def with_attributes(kind: type, form: tuple[Any, ...]) -> tuple[Any, ...]:
    """The reduced form of an instance of this class, extended to prepare the class where the instance is built."""
    names = set_by_metaclass(type(kind)) if type(kind) is not type else frozenset[str]()
    attributes = {name: vars(kind)[name] for name in sorted(names & vars(kind).keys())}
    if not attributes or kind.__module__ == "__main__":  # a class that is sent itself is sent with all attributes
        return form
    function, arguments, *rest = form
    return ready, (kind, attributes, function, arguments), *rest


def ready(kind: type, attributes: dict[str, Any], function: Any, arguments: tuple[Any, ...]) -> Any:
    for name, value in attributes.items():
        if name not in vars(kind) and type(value) is not StandIn:
            setattr(kind, name, value)
    return function(*arguments)


@functools.lru_cache(maxsize=256)
def set_by_metaclass(metaclass: type) -> frozenset[str]:
    """The attributes that `__call__`, and the methods of the metaclass that it uses, set on any object."""
    methods = {name: part for base in metaclass.__mro__[::-1] if base is not type for name, part in vars(base).items()}
    found: set[str] = set()
    waiting, seen = ["__call__"], set[str]()
    while waiting:
        name = waiting.pop()
        method = methods.get(name)
        if name not in seen and isinstance(method, types.FunctionType):
            seen.add(name)
            found.update(stored(method.__code__))
            waiting += method.__code__.co_names
    return frozenset(name for name in found if not name.startswith("__"))


def stored(code: types.CodeType) -> Iterator[str]:
    return (each.argval for each in dis.get_instructions(code) if each.opname == "STORE_ATTR")
