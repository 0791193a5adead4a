"""What is the notebook's own, and what a cell replaced in a library: `wait = time.sleep; time.sleep = x`.

A replaced original pickles by the name of its place, where another may be by now, here or in the other kernel. So it
travels as what was there before, and is each kernel's own.

**Invariant:** of a library only what cells assign is looked at.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

Place = tuple[str, str]
"""Module, and name in it."""

METHODS = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)

ASSIGNED: set[Place] = set()
BEFORE: dict[Place, Any] = {}
"""What was there, where this kernel knows it."""


def place_of(obj: Any) -> Place | None:
    """Where an original belongs; `None` for everything else."""
    place = names_of(obj)
    if not (type(place[0]) is type(place[1]) is str) or place not in ASSIGNED or BEFORE.get(place, obj) is not obj:
        return None
    return None if is_of_notebook(obj) else place


def names_of(obj: Any) -> tuple[Any, Any]:
    try:
        return getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    except Exception:  # a stand-in, or what answers for something else
        return None, None


def is_of_notebook(obj: Any) -> bool:
    """A function that was given the name of what it wraps."""
    return isinstance(obj, types.FunctionType) and obj.__globals__.get("__name__") == "__main__"


def of_notebook(one: Any) -> bool:
    """A function or class of it, an instance of such a class, or a method of one."""
    if isinstance(one, (types.FunctionType, type)):
        return one.__module__ == "__main__"
    # No attribute of anything else is looked up: IPython's stand-in for a magic would import the magic.
    return type(one.__self__ if isinstance(one, METHODS) else one).__module__ == "__main__"


def original(module: str, name: str) -> Any:
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
