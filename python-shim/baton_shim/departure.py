"""What a cell takes along: its names' values as one snapshot, and what the session has to know besides.

**Invariant:** changes nothing in the notebook.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from IPython.core.error import UsageError

from baton_shim import analysis
from baton_shim.errors import StateRefused, short
from baton_shim.session_names import of_ipython
from baton_shim.status import Transfer

if TYPE_CHECKING:
    from baton_shim.cell import NotebookCell
    from baton_shim.home import Home
    from baton_shim.options import Options
    from baton_shim.state import Refused, Snapshot, Table


class Departure(NamedTuple):
    table: Table
    snapshot: Snapshot


def depart(home: Home, cell: NotebookCell, found: analysis.CellNames, options: Options) -> Departure:
    """Raises StateRefused when the cell uses something that cannot move."""
    from baton_shim.state import Refused

    namespace = home.namespace
    missing = sorted(name for name in options.keep if name not in namespace)
    if missing:
        raise UsageError(f"--keep {','.join(missing)}: the notebook has no such variable")
    needed = analysis.needed(found, namespace, home.shell.user_ns_hidden)
    table = home.table
    names = (needed.names | options.keep) - options.drop
    wished = set(needed.wished) - names - options.drop
    gone = {name for name in home.shared if name not in namespace and name not in options.drop}
    around = home.surroundings.depart()
    figures = home.surroundings.figures.depart()
    handlers = home.surroundings.handlers.depart(namespace)
    while True:
        extra: dict[str, Any] = {
            "names": sorted(names | wished),
            "stores": sorted(name for name in needed.stores if of_ipython(name)),
            "sources": sources(home.shell, needed.files),
            "around": around.changes,
            "figures": figures,
            "handlers": handlers,
            "drop": sorted(options.drop),
            "returns": options.returns,
        }
        try:
            snapshot = table.snapshot(extra["names"], extra=extra, deleted=sorted(gone))
            break
        except Refused as refused:
            name = first_name(refused.path)
            if name not in wished:
                raise StateRefused(text_of(refused), refused.hint) from None
            wished.discard(name)  # only what the cell surely uses may stop it
        except Exception as error:  # whatever a library's own pickling raises
            home.void()
            text = f"{type(error).__name__}: {short(error)}"
            raise StateRefused(f"What the cell needs could not be packed ({text})") from None
    home.surroundings.departed(around)
    home.transfer = Transfer()
    home.transfer.left(snapshot, extra["names"], home.shared, options.keep)
    home.shared -= gone
    home.shared |= set(extra["names"])
    return Departure(table, snapshot)


def text_of(refused: Refused) -> str:
    if refused.reason.startswith("is not here"):  # a stand-in whose session is gone
        return f"'{refused.path}' {refused.reason}, in a session that is gone"
    return str(refused)


def first_name(path: str) -> str:
    match = re.match(r"[^\W\d]\w*", path)
    return match.group() if match else path


def sources(shell: Any, files: Iterable[str]) -> dict[str, tuple[int, str]]:
    """The notebook's cells in which functions of this cell were written, for tracebacks there."""
    numbers: dict[str, int] = getattr(shell.compile, "_filename_map", {})
    return {file: (numbers[file], "".join(linecache.getlines(file))) for file in files if file in numbers}
