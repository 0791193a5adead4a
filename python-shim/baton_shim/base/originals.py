"""Functions of a library that a cell replaced, as in `wait = time.sleep; time.sleep = x`.

A replaced original pickles as the name of its place, and another object may be there by now, in either kernel. So the
original is sent as "what was there before", which each kernel resolves to its own.

**Invariant:** in a library, only the names that cells assign are examined.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

Place = tuple[str, str]
"""A module, and a name in it."""

METHODS = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)

ASSIGNED: set[Place] = set()
BEFORE: dict[Place, Any] = {}
"""The original at each place, if this kernel knows it."""


def place_of(obj: Any) -> Place | None:
    """The place of an original; None for everything else."""
    place = names_of(obj)
    if not (type(place[0]) is type(place[1]) is str) or place not in ASSIGNED or BEFORE.get(place, obj) is not obj:
        return None
    return None if is_of_notebook(obj) else place


def names_of(obj: Any) -> tuple[Any, Any]:
    try:
        return getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    except Exception:  # a stand-in, or a proxy for something else
        return None, None


def is_of_notebook(obj: Any) -> bool:
    """Whether it is a function of the notebook, which may have the name of the function that it wraps."""
    return isinstance(obj, types.FunctionType) and obj.__globals__.get("__name__") == "__main__"


def of_notebook(one: Any) -> bool:
    """Whether it is a function or class of the notebook, an instance of such a class, or a method of one."""
    if isinstance(one, (types.FunctionType, type)):
        return one.__module__ == "__main__"
    # No attribute of other objects is looked up: IPython's stand-in for a magic would import the magic.
    return type(one.__self__ if isinstance(one, METHODS) else one).__module__ == "__main__"


def original(module: str, name: str) -> Any:
    """What a library had at this place before a cell replaced it. Raises RuntimeError if this kernel does not know."""
    if (module, name) in BEFORE:
        return BEFORE[module, name]
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if names_of(found) != (module, name) or is_of_notebook(found):
        raise RuntimeError(
            f"{module}.{name} was replaced in the cell that imported {module}; import it in an earlier one"
        )
    return found
