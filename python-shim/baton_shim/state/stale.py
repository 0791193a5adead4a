"""Warns if something in the notebook still refers to an object that was replaced.

An array that the cell resized, or an iterator that it advanced, cannot be updated in place. Objects that were sent
refer to the new one; a list that the cell did not know refers to the old one. Without `%%gpu`, this cannot happen.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from baton_shim.state.kinds import Kinds
from baton_shim.state.paths import Paths

_INTERNAL = ("pandas", "pyarrow")
_TO_THE_SHELL = ("exit", "quit", "get_ipython")  # these lead to everything, including this table


class StaleReference(UserWarning):
    """Something in the notebook refers to an object from before a `%%gpu` cell."""


def warn_of_stale_holders(old: list[Any], namespace: dict[str, Any], kinds: Kinds) -> None:
    if not old:
        return
    now = tuple(namespace.items())  # a thread may bind names meanwhile
    named = [(name, value) for name, value in now if not name.startswith("_") and name not in _TO_THE_SHELL]
    paths = Paths(named, kinds)
    while old:
        obj = old.pop()
        if sys.getrefcount(obj) <= _HELD_HERE or type(obj).__module__.partition(".")[0] in _INTERNAL:
            continue
        path = paths.path_to(obj)
        if path is not None:
            kind = f"{type(obj).__module__}.{type(obj).__qualname__}".removeprefix("builtins.")
            text = f"'{path}' still holds the {kind} from before this %%gpu cell, which had to make a new one of it"
            try:
                warnings.warn(f"{text}; name it in the cell, too, to keep both the same", StaleReference, stacklevel=2)
            except StaleReference:  # the student's filters raise warnings; the state has been applied already
                return


def _held_here() -> int:
    """The reference count that `warn_of_stale_holders` sees for an object that only it refers to."""
    old = [object()]
    obj = old.pop()
    return sys.getrefcount(obj)


_HELD_HERE = _held_here()
