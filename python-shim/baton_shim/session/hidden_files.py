"""The hint for a cell that looks for a file which was not sent because it is hidden."""

from __future__ import annotations

from baton_shim.base import mirror
from baton_shim.state import errors

HIDDEN = (
    "hidden files and folders are not copied to GPU machines: if {0!r} is beside your notebook and the cell needs it, "
    "add the line '!{0}' to the file .batonignore there"
)


def hint_for_error(error: BaseException) -> str | None:
    for link in errors.linked(error):
        if isinstance(link, FileNotFoundError) and isinstance(link.filename, str):
            hidden = mirror.hidden_part(link.filename)
            if hidden is not None:
                return HIDDEN.format(hidden)
    return None
