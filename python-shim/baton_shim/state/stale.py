"""Tells of what in the notebook still holds an object that had to be replaced, because it did not travel itself.

An array that the cell resized, or an iterator that it advanced, cannot be brought up to date in place. What travelled
holds the new one; a list that the cell knew nothing of holds the old one, which never happens without `%%gpu`.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from baton_shim.state.kinds import Kinds
from baton_shim.state.paths import path_to

_INTERNAL = ("pandas", "pyarrow")
_TO_THE_SHELL = ("exit", "quit", "get_ipython")  # from which everything is reached, this table included


class StaleReference(UserWarning):
    """Something in the notebook holds an object as it was before a `%%gpu` cell."""


def tell_of_stale_holders(old: list[Any], namespace: dict[str, Any], kinds: Kinds) -> None:
    if not old:
        return
    named = [
        (name, value) for name, value in namespace.items() if not name.startswith("_") and name not in _TO_THE_SHELL
    ]
    while old:
        obj = old.pop()
        if sys.getrefcount(obj) <= _HELD_HERE or type(obj).__module__.partition(".")[0] in _INTERNAL:
            continue
        path = path_to(obj, named, kinds)
        if path is not None:
            kind = f"{type(obj).__module__}.{type(obj).__qualname__}".removeprefix("builtins.")
            text = f"'{path}' still holds the {kind} from before this %%gpu cell, which had to make a new one of it"
            try:
                warnings.warn(f"{text}; name it in the cell, too, to keep both the same", StaleReference, stacklevel=2)
            except StaleReference:  # the student's filters make errors of warnings; the state is here already
                return


def _held_here() -> int:
    """The count of an object that only `tell_of_stale_holders` holds, counted as it counts."""
    old = [object()]
    obj = old.pop()
    return sys.getrefcount(obj)


_HELD_HERE = _held_here()
