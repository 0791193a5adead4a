"""What is sent with a cell: the values of its names as one snapshot, and what else the session needs.

If the running cell looks up another name, it is sent a supplement.

**Invariant:** changes nothing in the notebook.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from IPython.core.error import UsageError

from baton_shim.base.closure import reach
from baton_shim.base.compat import FIT
from baton_shim.base.sources import sources
from baton_shim.base.undoing import take_back
from baton_shim.notebook import analysis
from baton_shim.notebook.status import Transfer
from baton_shim.state.errors import StateRefused, short
from baton_shim.state.refusal import first_name
from baton_shim.state.session_names import is_hidden
from baton_shim.surroundings import warn
from baton_shim.surroundings.hooks import objects

if TYPE_CHECKING:
    from baton_shim.base.undoing import Action
    from baton_shim.notebook.cell import NotebookCell
    from baton_shim.notebook.home import Home
    from baton_shim.notebook.options import Options
    from baton_shim.state import Refused, Snapshot, Table


class Departure(NamedTuple):
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
    """Raises StateRefused if the cell uses something that cannot be sent."""
    from baton_shim.state import Refused

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
    beside = [last_error, home.background_uses, *objects(around.parts.get("hooks")), *cell.given()]
    # The line after a block reads the block's results, so they cannot be deferred.
    waits = options.background is None
    may_follow = cell.block is None and options.returns and waits and home.deferred.may_grow()
    needed = analysis.needed(found, namespace, visible, beside)
    names = (needed.names | options.keep) - options.drop
    # Naming what the session already has costs nothing, and what the cell deletes itself need not be returned.
    wished = (set(needed.wished) | (needed.deleted & home.shared)) - names - options.drop
    certain = (needed.certain | options.keep) - options.drop
    gone = {name for name in home.shared if name not in namespace and name not in options.drop}
    while True:
        extra: dict[str, Any] = {
            "names": sorted(names | wished),
            "notebook": "\0".join(sorted(visible - options.drop)),
            "dynamic": needed.dynamic,
            "deleted": sorted(needed.deleted - names - wished - options.drop),
            "stores": sorted(name for name in needed.stores if is_hidden(name)),
            "sources": sources(home.shell, needed.files | cell.files()),
            "last_error": last_error,
            **around.parts,
            "patched": surroundings.patches.named(),
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
                modules=around.modules,
                places=cell.block.places() if cell.block is not None else (),
            )
            break
        except Refused as refused:
            bad = {first_name(refused.path)} & (names | wished)
            if not bad or bad & certain:
                raise StateRefused(text_of(refused), refused.hint) from None
        except Exception as error:  # any error of a library's pickling
            reasons = unpackable_of(extra["names"], namespace)
            bad = set(reasons)
            if not bad or bad & certain:
                home.void()
                raise not_packed({name: reasons[name] for name in bad & certain}, error) from None
        # Only names that the cell certainly uses may stop it. If it uses another one after all, it is told the reason.
        names, wished = names - bad, wished - bad
    for line in home.setters.lines(extra["names"], cell.code, namespace):
        sys.stderr.write(f"{line}\n")
    undo: list[Action] = [partial(setattr, home, "shared", set(home.shared))]
    surroundings.commit(around, undo.append)
    table.may_differ(options.drop)
    home.transfer = Transfer()
    home.transfer.left(snapshot, extra["names"], home.shared, options.keep)
    home.shared -= gone
    home.shared |= set(extra["names"])
    return Departure(table, snapshot, set(extra["names"]), undo)


UNNAMED = "The variables of this cell"


def unpackable_of(names: Iterable[str], namespace: dict[str, Any]) -> dict[str, str]:
    from baton_shim.state import Table
    from baton_shim.state.culprits import unpackable

    return unpackable(lambda: Table(namespace), {name: namespace[name] for name in names})


def not_packed(culprits: Mapping[str, str], error: Exception) -> StateRefused:
    for name, reason in culprits.items():
        hint = f"create it inside the cell, or leave it out: %%gpu --drop {name}"
        return StateRefused(cannot_move(name, reason), hint)
    return StateRefused(f"{UNNAMED} could not be packed ({type(error).__name__}: {short(error)})")


def named_refusal(said: str, names: Iterable[str], namespace: Mapping[str, Any]) -> StateRefused:
    """Finds the variable behind an error of rebuilding: the one that fails with the same error alone."""
    import cloudpickle

    for name in sorted(names):
        try:
            cloudpickle.loads(cloudpickle.dumps(namespace.get(name)))
        except Exception as error:  # any error of the class's own code
            if f"({type(error).__name__}: {short(error)})" in said:
                hint = f"create it inside the cell, or leave it out: %%gpu --drop {name}"
                return StateRefused(said.replace(UNNAMED, f"'{name}'"), hint)
    return StateRefused(said)


def supply(home: Home, departure: Departure, asked: Iterable[str], options: Options) -> Snapshot:
    """What the running cell lacks to have these names, and the names that those may use when they are called.

    Raises StateRefused only if no answer at all is possible.
    """
    from baton_shim.state import Refused

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
        except Refused as reason:
            blamed = {first_name(reason.path)} & (names | wished) or names | wished
            culprits: dict[str, tuple[str, str | None]] = dict.fromkeys(blamed, (text_of(reason), reason.hint))
        except Exception as error:  # any error of a library's pickling
            if not names:
                raise not_packed({}, error) from None
            unknown = f"could not be packed ({type(error).__name__}: {short(error)})"
            reasons = unpackable_of(names | wished, namespace) or dict.fromkeys(wished or names, unknown)
            culprits = {name: (cannot_move(name, why), None) for name, why in reasons.items()}
        refused.update((name, why) for name, why in culprits.items() if name in names)
        names, wished = names - culprits.keys(), wished - culprits.keys()
    if home.transfer is not None:
        home.transfer.supplied(snapshot, extra["names"], home.shared)
    home.shared.update(extra["names"])
    given.update(extra["names"])
    return snapshot


def cannot_move(name: str, reason: str) -> str:
    return f"'{name}' {reason} and cannot move to the GPU machine"


def text_of(refused: Refused) -> str:
    if refused.reason.startswith("is not here"):  # a stand-in whose session has ended
        return f"'{refused.path}' {refused.reason}"
    return str(refused)
