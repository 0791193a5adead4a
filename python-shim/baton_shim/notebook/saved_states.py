"""`%gpu_save`, `%gpu_load` and `%gpu_states`: variables that outlive their kernel.

A state is the only message of an object table of its own: the table that is shared with the session does not hear of
it. So identity, aliasing and views are kept as between the two kernels, and a load is applied wholly or not at all.

**Invariant:** saving changes nothing in the notebook; what cannot be saved is left out with every name that reaches it,
and said. Only states of this notebook's own person are ever read.
"""

from __future__ import annotations

import builtins
import datetime
import linecache
import re
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from baton_shim.base.closure import reach
from baton_shim.base.interrupts import Interrupts
from baton_shim.base.link import LinkClosed, Message
from baton_shim.base.version import __version__
from baton_shim.notebook import analysis
from baton_shim.notebook.call import proxy_gone
from baton_shim.notebook.cell import cell_number
from baton_shim.notebook.departure import first_name, sources
from baton_shim.notebook.status import listed, size
from baton_shim.state import Refused, Snapshot, Table, TableBroken, errors
from baton_shim.state.errors import GpuServiceError
from baton_shim.surroundings import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from baton_shim.base.undoing import OnUndo
    from baton_shim.notebook.home import Home

FORMAT = 1
"""Counted up with each change of the message that another version cannot read."""
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
LONGEST_NAME = 64
TICK_SECONDS = 1.0
GIVE_UP_SECONDS = 10.0
"""For a proxy that does not answer an interrupt."""
SAID_AFTER_SECONDS = 2.0
CHANGING = ("save_state", "delete_state")
AS_THEY_WERE = "Your variables and saved states are as they were"
UNCERTAIN = (
    "Your variables are as they were. The broker was asked already and has not answered: "
    "%gpu_states shows whether it was done"
)


@dataclass
class Load:
    """As a cell, for the log of what can be undone."""

    number: int
    unit: str = "%gpu_load"


class SavedStates:
    def __init__(self, home: Home) -> None:
        self._home = home

    def save(self, name: str, wanted: list[str], *, strict: bool) -> str:
        check_name(name)
        home = self._home
        visible = analysis.visible_names(home.namespace, home.shell.user_ns_hidden)
        if missing := sorted(set(wanted) - home.namespace.keys()):
            raise UsageError(f"%gpu_save: the notebook has no variable {', '.join(missing)}")
        names = set(wanted) or analysis.of_student(visible)
        cells = None if wanted else home.shell.history_manager.input_hist_raw
        table, snapshot, left = self._snapshot(names, cells)
        graphs = self._graphs(table, names - left.keys())
        lost = f"the computation graph of {listed(graphs)}" if graphs else ""
        if strict and (left or graphs):
            lines = [f"{one} {reason}" for one, reason in sorted(left.items())]
            lines += [f"{lost} stays in its kernel"] if graphs else []
            raise GpuServiceError(
                "Nothing was saved, because not all can be: " + "; ".join(lines),
                "without --strict all else is saved",
            )
        kept = sorted(names - left.keys())
        if not kept:
            text = "; ".join(f"{one} {reason}" for one, reason in sorted(left.items()))
            raise GpuServiceError(f"Nothing was saved: {text or 'the notebook has no variables'}")
        about = {
            "format": FORMAT,
            "baton": __version__,
            "python": PYTHON,
            "variables": kept,
            "packages": packages(),
            "left_out": left,
        }
        what = f"Saving {listed(kept)}"
        message = self._ask(what, table, "save_state", name=name, about=about, state=snapshot.as_wire())
        for one, reason in sorted(left.items()):
            sys.stderr.write(f"warning: {one} is not saved: {reason}\n")
        if graphs:
            warn(f"The values are saved without {lost}. Compute them again where you need gradients")
        if wanted:
            others = analysis.of_student(visible) - names
            for line in self._missing(kept, name, others.__contains__):
                warn(line)
        saved = message.body["saved"]
        return f"Saved {listed(kept)} as {name} ({size(saved['bytes'])}). Restore them with %gpu_load {name}"

    def load(self, name: str, wanted: list[str]) -> str:
        check_name(name)
        home = self._home
        message = self._ask(f"Loading {name}", None, "load_state", name=name)
        try:
            about = message.body["about"]
            check(name, about)
            variables = set(about["variables"])
            if missing := sorted(set(wanted) - variables):
                has = listed(sorted(variables))
                raise UsageError(
                    f"%gpu_load: the state {name} has no variable {', '.join(missing)}\nhint: it has {has}"
                )
            for line in differences(about["packages"]):
                warn(line)
            names = set(wanted) or variables
            replaced = sorted(names & home.namespace.keys())
            used = self._apply(name, message, names if wanted else None)
        finally:
            message.close()
        lines = [f"Loaded {listed(sorted(names))} of {name}. %gpu_undo takes it back"]
        if replaced:
            lines.append(f"Replaced: {listed(replaced)}")
        if used:
            lines.append(f"Also loaded, because these use it: {listed(sorted(used))}")
        present = {*home.namespace, *vars(builtins)}
        for line in self._missing(names | used, f"{name} or the notebook", lambda one: one not in present):
            warn(line)
        if not wanted:
            lines += [f"Not in it, because it could not be saved: {one}" for one in sorted(about["left_out"])]
        return "\n".join(lines)

    def text(self) -> str:
        return table_of(self._ask("Asking", None, "list_states").body["states"])

    def delete(self, name: str) -> str:
        check_name(name)
        states = self._ask("Deleting", None, "delete_state", name=name).body["states"]
        return f"Deleted {name}. Its room is free some minutes from now\n{table_of(states)}"

    # ---- what travels ----

    def _snapshot(self, names: set[str], cells: list[str] | None) -> tuple[Table, Snapshot, dict[str, str]]:
        """Of all of the names that can be saved, and why the others cannot. `cells`: of a whole notebook."""
        home, left = self._home, dict[str, str]()
        names = set(names)
        with home.turn:
            while True:
                table = Table(home.namespace)
                files = reach(names, home.namespace).files
                extra = {"sources": sources(home.shell, files), **home.surroundings.whole(cells)}
                try:
                    snapshot = table.snapshot(sorted(names), extra=extra)
                except Refused as refused:
                    culprits = {first_name(refused.path)} & names
                    reasons = dict.fromkeys(culprits, refused.reason)
                    if not culprits:
                        raise GpuServiceError(f"Nothing was saved: {refused.path} {refused.reason}") from None
                except Exception as error:  # whatever a library's own pickling raises
                    reasons = self._culprits(names)
                    if not reasons:
                        text = f"{type(error).__name__}: {errors.short(error)}"
                        raise GpuServiceError(
                            f"Nothing was saved: the variables could not be packed ({text})"
                        ) from None
                else:
                    reasons = {}
                    for obj, reason in table.stayed:
                        for name in names:
                            if (way := table.path(obj, name)) is not None:
                                reasons.setdefault(name, reason if way in reason else f"holds '{way}', which {reason}")
                    if table.stayed and not reasons:
                        # The search for words ends after so many objects, and knows not every way.
                        reasons = self._culprits(names)
                    if not reasons:
                        for _, reason in table.stayed:
                            warn(f"A part of the notebook is not saved: {reason}")
                        return table, snapshot, left
                left |= reasons
                names -= reasons.keys()

    def _culprits(self, names: Iterable[str]) -> dict[str, str]:
        """Those that cannot be packed whole by themselves."""
        names = sorted(names)
        table = Table(self._home.namespace)
        try:
            table.snapshot(names)
        except Refused as refused:
            reason = refused.reason
        except Exception as error:  # as above
            reason = f"cannot be packed ({type(error).__name__}: {errors.short(error)})"
        else:
            if not table.stayed:
                return {}
            reason = f"holds something that {table.stayed[0][1]}"
        half = len(names) // 2
        return self._culprits(names[:half]) | self._culprits(names[half:]) if half else {names[0]: reason}

    def _graphs(self, table: Table, names: set[str]) -> list[str]:
        """The names that lead to tensors whose computation graph is not saved."""
        found = set[str]()
        for tensor in table.with_graphs():
            holders = {name for name in names - found if table.path(tensor, name) is not None}
            found |= holders
            if not holders and not found:
                found.add("a tensor")
        return sorted(found)

    def _missing(self, names: Iterable[str], where: str, is_missing: Callable[[str], bool]) -> Iterator[str]:
        """What the functions and classes among them use that is not there."""
        for name in sorted(names):
            used = reach([name], self._home.namespace).names
            if missing := sorted(filter(is_missing, used)):
                yield f"Not in {where}: {listed(missing)}, which {name} uses"

    def _apply(self, name: str, message: Message, wanted: set[str] | None) -> set[str]:
        """Returns what is bound besides the wanted names (None: all are), because they use it and it was not here."""
        home = self._home
        troubles: list[str] = []
        used = set[str]()

        def only(values: Mapping[str, object]) -> set[str]:
            assert wanted is not None
            while True:
                chosen = wanted | used
                reached = reach([], home.namespace, [values[one] for one in chosen if one in values])
                new = {one for one in reached.names if one in values and one not in home.namespace} - chosen
                if not new:
                    return chosen
                used.update(new)

        def besides(extra: dict[str, Any], undo: OnUndo) -> None:
            if wanted is None:
                troubles.extend(home.surroundings.apply(extra, undo))

        table = Table(home.namespace, home=True, only=None if wanted is None else only)
        with home.turn, Interrupts():
            try:
                assert message.file_descriptor is not None
                extra: Any = table.apply(message.body["delta"], message.file_descriptor, besides=besides)
            except BaseException as error:  # whatever the classes raise while their objects are rebuilt
                text = (
                    str(error) if isinstance(error, TableBroken) else f"{type(error).__name__}: {errors.short(error)}"
                )
                hint = None
                if isinstance(error, ImportError) and error.name:
                    hint = f"install the package of the module {error.name} and load it again"
                raise GpuServiceError(f"{name} could not be loaded ({text})", hint) from error
            home.undo_log.note(Load(cell_number(home.shell)), table)
            home.undo_log.table_ends(table)
        for file, (_, text) in extra["sources"].items():
            lines = text.splitlines(keepends=True)
            linecache.cache.setdefault(file, (len(text), None, lines, file))
        for line in troubles:
            warn(line)
        return used

    # ---- the proxy ----

    def _ask(self, what: str, table: Table | None, request: str, **body: Any) -> Message:
        """Returns the answer. KeyboardInterrupt says whether something was done; GpuServiceError: nothing was."""
        home = self._home
        with home.between_cells() as free:
            if not free:
                raise UsageError("A %%gpu cell is running\nhint: try again when it has ended")
            try:
                with Interrupts() as interrupts:
                    home.calls += 1
                    call = home.calls
                    if table is not None:
                        home.unreleased[call] = [table]
                    home.link.send(request, call=call, **body)
                    message = self._answer(call, what, interrupts)
            except LinkClosed:
                raise proxy_gone() from None
        if message is None:
            raise KeyboardInterrupt(f"{what}: interrupted. {UNCERTAIN if request in CHANGING else AS_THEY_WERE}")
        if message.name == "state_failed":
            error = message.body["error"]
            if error is None:
                raise KeyboardInterrupt(f"{what}: interrupted. {AS_THEY_WERE}")
            if error["name"] == "KeyboardInterrupt":
                raise KeyboardInterrupt(f"{what}: interrupted. {UNCERTAIN}")
            raise GpuServiceError(error["value"], error["hint"])
        if interrupts.count and request in CHANGING:
            raise KeyboardInterrupt(f"{what}: interrupted, but it was done before")
        return message

    def _answer(self, call: int, what: str, interrupts: Interrupts) -> Message | None:
        home = self._home
        began, said, give_up_at = time.monotonic(), False, None
        while True:
            if interrupts.count and give_up_at is None:
                home.link.send("cancel", call=call)
                give_up_at = time.monotonic() + GIVE_UP_SECONDS
            if give_up_at is not None and time.monotonic() > give_up_at:
                return None
            message = home.link.receive(interrupts, TICK_SECONDS)
            if message is None:
                if not said and time.monotonic() - began > SAID_AFTER_SECONDS:
                    said = True
                    sys.stderr.write(f"{what} ...\n")
                    sys.stderr.flush()
            elif message.body.get("call") == call and message.name != "released":
                home.unreleased.pop(call, None)
                return message
            else:
                home.overdue(message)


def check_name(name: str) -> None:
    """Raises UsageError for what the broker takes for no name."""
    if not re.fullmatch(rf"[\w.-]{{1,{LONGEST_NAME}}}", name) or name in (".", ".."):
        raise UsageError(
            f"{name!r} is no name for a state\n"
            f"hint: choose 1 to {LONGEST_NAME} letters, digits, dots, hyphens and underscores"
        )


def check(name: str, about: dict[str, Any]) -> None:
    """Raises GpuServiceError for a state that this kernel cannot read."""
    whose = f"{name} was saved with Python {about['python']} and Baton {about['baton']}"
    if about["format"] != FORMAT:
        raise GpuServiceError(
            f"{whose}, whose states Baton {__version__} cannot read. Nothing was loaded",
            f"load it in a kernel with Baton {about['baton']}",
        )
    if about["python"] != PYTHON:
        raise GpuServiceError(
            f"{whose}; this kernel runs Python {PYTHON}, which cannot use its functions. Nothing was loaded",
            f"load it in a kernel with Python {about['python']}",
        )


def packages() -> dict[str, str]:
    """The installed packages of which something is imported, with their versions."""
    from importlib.metadata import PackageNotFoundError, packages_distributions, version

    found = {}
    imported = {module.partition(".")[0] for module in tuple(sys.modules)}
    for module, names in packages_distributions().items():
        if module not in imported:
            continue
        for name in names:
            try:
                found[name] = version(name)
            except PackageNotFoundError:  # its files are half gone
                continue
    return found


def differences(saved: dict[str, str]) -> list[str]:
    """What the kernel that saved it had and this one has not."""
    from importlib.metadata import PackageNotFoundError, version

    lines = []
    for name, there in sorted(saved.items()):
        try:
            here: str | None = version(name)
        except PackageNotFoundError:
            here = None
        if here is None:
            lines.append(f"The state was saved with {name} {there}, which is not installed here")
        elif here != there:
            lines.append(f"The state was saved with {name} {there}; here it is {here}")
    return lines


def table_of(states: list[dict[str, Any]]) -> str:
    if not states:
        return "You have no saved states. %gpu_save NAME makes one"
    lines = []
    for state in states:
        when = datetime.datetime.fromtimestamp(state["saved_ms"] / 1000).astimezone()
        notebook = f", in {state['notebook']}" if state["notebook"] else ""
        count = f"{state['variables']} variable{'' if state['variables'] == 1 else 's'}"
        lines.append(f"{state['name']}: {count}, {size(state['bytes'])}, saved {when:%Y-%m-%d %H:%M}{notebook}")
    return "\n".join(lines)
