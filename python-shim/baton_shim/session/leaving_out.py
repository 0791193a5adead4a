"""What of a cell's results cannot be packed at all: it stays in the session, and the notebook gets everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from baton_shim.state.culprits import culprits, reasons_of, unpackable
from baton_shim.state.refusal import StandIn, where_it_is

if TYPE_CHECKING:
    from baton_shim.state import Table

ANY_OBJECT = ("value", "returned", "given", "raised")
"""Parts of the message that may be any object of the cell. The notebook accepts a stand-in for each."""


def leave_out(
    error: Exception,
    make_table: Callable[[], Table],
    namespace: Mapping[str, Any],
    names: list[str],
    extra: dict[str, Any],
    parts: dict[str, Any],
    titles: Mapping[str, str],
) -> list[str]:
    """Removes culprits of this error from `names`, `extra` and `parts` (of the surroundings, which have `titles`).

    Returns a line about each; none if there is none.
    """
    lines = []
    found = culprits(make_table, {name: namespace[name] for name in names}, error)
    for name, reason in reasons_of(found).items():
        names.remove(name)
        lines.append(
            f"'{name}' {reason}, and stays on the GPU machine. "
            "In the notebook it is as before the cell; everything else has returned"
        )
    results = {key: extra[key] for key in ANY_OBJECT if key in extra}
    earlier = {f"earlier value {number}": value for number, value in enumerate(extra["earlier"], 1)}
    for key, reason in reasons_of(unpackable(make_table, results | earlier)).items():
        part = earlier if key in earlier else extra
        part[key] = StandIn(f"The result {reason} and {where_it_is(home=False)}")
        lines.append(f"The result {reason}, and stays on the GPU machine")
    extra["earlier"] = list(earlier.values())
    for name, reason in reasons_of(unpackable(make_table, parts)).items():
        del parts[name]
        lines.append(f"{titles[name]} could not be updated in the notebook: what the session has {reason}")
    return lines
