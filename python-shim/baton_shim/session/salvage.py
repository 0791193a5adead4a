"""What the last cell was given and left, for another kernel, after its notebook kernel has ended.

**Invariant:** contains only what the cell was given or bound itself; the session may have outdated values of other
names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from baton_shim.base import wire
from baton_shim.base.closure import reach
from baton_shim.base.sources import sources
from baton_shim.state import Table
from baton_shim.state.errors import GpuServiceError
from baton_shim.state.whole import whole

if TYPE_CHECKING:
    from baton_shim.base.local_modules import LocalModules

NOTHING = {"format": 0, "baton": "", "python": "", "variables": [], "packages": {}}
VALUE = "the result"
"""The name of a value that cannot be sent."""


class Left(NamedTuple):
    names: list[str]
    value: Any
    """The value of the cell's last line, or what the call returned."""
    displays: list[tuple[str, str]]
    """What the cell displays at its end."""


def salvage(shell: Any, modules: LocalModules, left: Left) -> tuple[dict[str, Any], Table | None]:
    """The other fields of the message `salvaged`, and the table that keeps the memory it refers to."""

    def table() -> Table:
        return Table(shell.user_ns, modules.apply, modules.packages.missing)

    def extra(names: set[str]) -> dict[str, Any]:
        files = reach(names, shell.user_ns).files
        return {"sources": sources(shell, files), "value": left.value, "displays": left.displays}

    try:
        saved = whole(table, left.names, extra)
    except GpuServiceError as error:
        remote = wire.remote_error("GpuServiceError", str(error))
        return {"about": NOTHING, "state": None, "error": remote}, None
    about = saved.about()
    about["left_out"] = {**saved.left, **dict.fromkeys([VALUE] if saved.losses else [], "; ".join(saved.losses))}
    return {"about": about, "state": saved.snapshot.as_wire(), "error": None}, saved.table
