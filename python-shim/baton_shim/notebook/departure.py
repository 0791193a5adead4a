"""What is sent with a cell: the values of its names as one snapshot, and what else the session needs.

If the running cell looks up another name, it is sent a supplement.

**Invariant:** changes no variable of the notebook.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Set
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from IPython.core.error import UsageError

from baton_shim.base.closure import own_modules, reach
from baton_shim.base.compat import FIT
from baton_shim.base.sources import sources
from baton_shim.base.undoing import take_back
from baton_shim.notebook import analysis
from baton_shim.notebook.status import TransferStats
from baton_shim.state.errors import StateRefused, short
from baton_shim.state.session_names import is_hidden
from baton_shim.surroundings import warn
from baton_shim.surroundings.hooks import objects
from baton_shim.surroundings.imports import names_bound

if TYPE_CHECKING:
    from baton_shim.base.undoing import Action
    from baton_shim.notebook.cell import NotebookCell
    from baton_shim.notebook.home import Home
    from baton_shim.notebook.options import Options
    from baton_shim.state import Refused, Snapshot, Table


class Departure(NamedTuple):
    """What was sent with a cell, and how to take it back."""

    table: Table
    snapshot: Snapshot
    names: set[str]
    """The names that the cell has been given so far."""
    undo: list[Action]

    def take_back(self) -> bool:
        """No session received it. Returns whether the next cell can continue from what was known before it."""
        if not self.table.unsend():
            return False
        take_back(self.undo)
        return True


def depart(home: Home, cell: NotebookCell, found: analysis.CellNames, options: Options) -> Departure:
    """Takes the snapshot that is sent with a cell. `found`: the names that the cell's text shows.

    Raises StateRefused if the cell certainly uses something that cannot be sent; other such objects are left out.
    """
    namespace = home.namespace
    for line in FIT.news():
        warn(line)
    missing = sorted(name for name in options.keep if name not in namespace)
    if missing:
        raise UsageError(f"--keep {','.join(missing)}: the notebook has no such variable")
    visible = analysis.visible_names(namespace, home.shell.user_ns_hidden)
    table = home.table
    surroundings = home.surroundings
    surroundings.patches.read_new(home.shell.history_manager.input_hist_raw, namespace)
    around = surroundings.look()
    last_error = getattr(sys, "last_value", None) if found.last_error else None
    hooks, figures = objects(around.parts.get("hooks")), around.parts.get("figures")
    imports = {name for _, module, part in names_bound(cell.code) for name in (module, f"{module}.{part}")}
    imported = own_modules(imports)
    used_objects = [last_error, home.background_uses, *hooks, figures, *imported, *cell.given()]
    # The line after a block reads the block's results, so they cannot be deferred.
    waits = options.background is None
    may_follow = cell.block is None and options.returns and waits and home.deferred.may_grow()
    needed = analysis.needed(found, namespace, visible, used_objects)
    names = (needed.names | options.keep) - options.drop
    # A name that the cell may delete is sent, too, if the session has its value already. This costs nothing.
    wished = (set(needed.wished) | (needed.deleted & home.shared)) - names - options.drop
    places = dict(cell.block.places()) if cell.block is not None else {}
    certain = (needed.certain | options.keep) - options.drop
    partings = True
    gone = {name for name in home.shared if name not in namespace and name not in options.drop}
    while True:
        extra: dict[str, Any] = {
            "names": sorted(names | wished),
            "notebook": "\0".join(sorted(visible - options.drop)),
            "dynamic": needed.dynamic,
            "deleted": sorted(needed.deleted - names - wished - options.drop),
            "stores": sorted(name for name in needed.stores | found.deletes if is_hidden(name)),
            "sources": sources(home.shell, needed.files | cell.files()),
            "last_error": last_error,
            "imported": table.imports(imported),
            **around.parts,
            "patched": surroundings.patches.named(),
            "results": len(namespace.get("_oh", ())),
            "drop": sorted(options.drop),
            "returns": options.returns,
            "outlives": options.background is not None,
            "budget": [*home.budget] if may_follow else None,
        }
        if (block := cell.block) is not None:
            extra["block"] = block.code, block.function, block.arguments, dict(block.keywords)
        try:
            snapshot = table.snapshot(
                extra["names"],
                certain=certain,
                extra=extra,
                deleted=sorted(gone),
                partings=partings,
                modules=around.modules,
                places=tuple(places.items()),
            )
            break
        except Exception as error:  # `Refused`, or any error of a library's pickling
            reasons = culprits_of(names | wished, namespace, places, error)
            if guilty := sorted((certain | places.keys()) & reasons.keys()):
                raise refusal(reasons[guilty[0]]) from None
            lines = [] if reasons else without_culprits(around.parts, surroundings.titles(), namespace)
            if not (reasons or lines or partings):
                home.void()
                raise refusal(error) from None
            for line in lines:
                warn(line)
            partings &= bool(reasons or lines)  # otherwise it may be in an object that the notebook no longer uses
        # Only names that the cell certainly uses may stop it. If it uses another one, it gets an error with the reason.
        names, wished = names - reasons.keys(), wished - reasons.keys()
    for line in home.setters.lines(extra["names"], cell.code, namespace):
        sys.stderr.write(f"{line}\n")
    undo: list[Action] = [partial(setattr, home, "shared", set(home.shared))]
    surroundings.commit(around, undo.append)
    table.may_differ(options.drop)
    home.transfer_stats = TransferStats()
    home.transfer_stats.left(snapshot, extra["names"], home.shared, options.keep)
    home.shared -= gone
    home.shared |= set(extra["names"])
    return Departure(table, snapshot, set(extra["names"]), undo)


def culprits_of(
    names: Set[str], namespace: dict[str, Any], places: dict[str, object], error: Exception
) -> dict[str, Refused]:
    from baton_shim.state import Table
    from baton_shim.state.culprits import culprits

    return culprits(lambda: Table(namespace), {name: namespace[name] for name in names} | places, error)


def without_culprits(parts: dict[str, Any], titles: Mapping[str, str], namespace: dict[str, Any]) -> list[str]:
    """Removes parts of the surroundings that cannot be packed. Returns a line about each."""
    from baton_shim.state import Table
    from baton_shim.state.culprits import reasons_of, unpackable

    reasons = reasons_of(unpackable(lambda: Table(namespace), parts))
    for name in reasons:
        del parts[name]
    return [
        f"{titles[name]} could not be updated on the GPU machine: what the notebook has {reason}"
        for name, reason in reasons.items()
    ]


def refusal(error: Exception) -> StateRefused:
    from baton_shim.state import Refused

    if isinstance(error, Refused):
        return StateRefused(text_of(error), error.hint)
    return StateRefused(f"The variables of this cell could not be packed ({type(error).__name__}: {short(error)})")


def supply(home: Home, departure: Departure, asked: Iterable[str], options: Options) -> Snapshot:
    """What the running cell lacks to have these names, and the names that those may use when they are called.

    Raises StateRefused only if no answer at all is possible.
    """
    from baton_shim.state.culprits import refusal_of

    namespace, given = home.namespace, departure.names
    visible = analysis.visible_names(namespace, home.shell.user_ns_hidden) - options.drop - given
    names = visible.intersection(asked)
    reached = reach(names, namespace)
    wished = (analysis.of_student(visible) if reached.everything else reached.names & visible) - names
    reached = reach(names | wished, namespace)
    refused: dict[str, tuple[str, str | None]] = {}
    while True:
        extra: dict[str, Any] = {
            "names": sorted(names | wished),
            "refused": refused,
            "dynamic": reached.dynamic,
            "sources": sources(home.shell, reached.files),
        }
        try:
            snapshot = departure.table.supplement(extra["names"], extra=extra)
            break
        except Exception as error:  # `Refused`, or any error of a library's pickling
            found = culprits_of(names | wished, namespace, {}, error)
            if not (found or names):
                raise refusal(error) from None
            found = found or {name: refusal_of(name, error) for name in wished or names}
            culprits = {name: (text_of(one), one.hint) for name, one in found.items()}
        refused.update((name, why) for name, why in culprits.items() if name in names)
        names, wished = names - culprits.keys(), wished - culprits.keys()
    if home.transfer_stats is not None:
        home.transfer_stats.supplied(snapshot, extra["names"], home.shared)
    home.shared.update(extra["names"])
    given.update(extra["names"])
    return snapshot


def text_of(refused: Refused) -> str:
    if refused.reason.startswith("is not here"):  # a stand-in whose session has ended
        return f"'{refused.path}' {refused.reason}"
    return str(refused)
