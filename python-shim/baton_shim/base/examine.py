"""Questions about any object that run none of the student's code: no `__class__`, `__getattribute__` or metaclass.

**Invariant:** the answers come from the interpreter's own record of an object's type.
"""

from __future__ import annotations

from typing import Any

_OF_TYPES = vars(type)  # a metaclass may hide its class's own attributes


def is_a(obj: object, *kinds: type) -> bool:
    """Like `isinstance`, but an object cannot pretend to be of another type."""
    return issubclass(type(obj), kinds)


def of_type(kind: type, field: str) -> Any:
    """An attribute that every class has: `__module__`, `__qualname__`, `__bases__`, `__dict__`."""
    return _OF_TYPES[field].__get__(kind)


def made_in_notebook(kind: type) -> bool:
    """Whether a cell defined the class."""
    module = of_type(kind, "__module__")
    return type(module) is str and module == "__main__"


def name_of_type(kind: type) -> str:
    """With the module, if that is informative."""
    module, name = of_type(kind, "__module__"), of_type(kind, "__qualname__")
    return name if module in ("builtins", "__main__") else f"{module}.{name}"
