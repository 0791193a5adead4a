"""Finds the values that cannot be packed, after packing several has failed.

Single objects that cannot be sent do not fail a message: stand-ins replace them. Here even that is impossible, or there
are too many of them.

**Invariant:** the tables of the two ends are not used; each attempt has a table of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from baton_shim.state.errors import short
from baton_shim.state.failures import TOO_DEEP
from baton_shim.state.refusal import Refused, first_name
from baton_shim.state.table import Table


def culprits(make_table: Callable[[], Table], values: Mapping[str, Any], error: Exception) -> dict[str, Refused]:
    """Those of the values without which packing gets further than to this error.

    If packing fails for another reason, there are none.
    """
    if isinstance(error, Refused) and (name := first_name(error.path)) in values:
        return {name: error}
    return unpackable(make_table, values)


def unpackable(
    make_table: Callable[[], Table], values: Mapping[str, Any], *, stand_ins: bool = True
) -> dict[str, Refused]:
    """The values that cannot be packed even alone; `stand_ins`: whether they may hold some."""
    if not values:
        return {}
    names = sorted(values)
    table = make_table()
    try:
        table.snapshot((), extra=dict(values), places=tuple(values.items()))
    except Exception as error:  # any error of a library's pickling
        refused = refusal_of(names[0], error)
    else:
        if stand_ins or not table.left_behind:
            return {}
        obj, reason = table.left_behind[0]
        refused = Refused(names[0], reason if obj is values[names[0]] else f"holds something that {reason}")
    if len(names) == 1:
        return {names[0]: refused}
    half = len(names) // 2
    parts = [{name: values[name] for name in some} for some in (names[:half], names[half:])]
    return unpackable(make_table, parts[0], stand_ins=stand_ins) | unpackable(make_table, parts[1], stand_ins=stand_ins)


def refusal_of(name: str, error: Exception) -> Refused:
    """The error of packing this value alone."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, RecursionError):
        return Refused(name, *TOO_DEEP)
    return Refused(name, f"cannot be packed ({type(error).__name__}: {short(error)})", "create it inside the cell")


def reasons_of(found: Mapping[str, Refused]) -> dict[str, str]:
    """The reasons as the rest of sentences about the names."""
    return {
        name: one.reason if one.path == name else f"holds '{one.path}', which {one.reason}"
        for name, one in found.items()
    }
