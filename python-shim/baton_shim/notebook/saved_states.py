"""`%gpu_save`, `%gpu_load` and `%gpu_states`: variables that outlive their kernel.

A state is the only message of an object table of its own; the table that is shared with the session is not involved.
So identity, aliasing and views are kept as between the two kernels, and a load is applied completely or not at all.

**Invariant:** saving changes nothing in the notebook. What cannot be saved is left out with every name that reaches it,
and reported. Only states of the notebook's own user are ever read.
"""

from __future__ import annotations

import datetime
import re
import sys
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from baton_shim.base.closure import reach
from baton_shim.base.here import by_reference
from baton_shim.base.interrupts import Interrupts
from baton_shim.base.sources import sources
from baton_shim.notebook import analysis
from baton_shim.notebook.asking import ask, stopped_after, stopped_before
from baton_shim.notebook.loading import load, missing_of
from baton_shim.notebook.status import listed, size
from baton_shim.state import Table
from baton_shim.state.errors import GpuServiceError
from baton_shim.state.whole import Whole, whole
from baton_shim.surroundings import warn

if TYPE_CHECKING:
    from baton_shim.notebook.home import Home

LONGEST_NAME = 64


class SavedStates:
    """The saved states of the notebook's user. Each method returns text for the student."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def save(self, name: str, wanted: list[str], *, strict: bool) -> str:
        """The message of a KeyboardInterrupt says whether the state was saved."""
        check_name(name)
        with Interrupts() as interrupts:
            try:
                with interrupts.raising():
                    saved, graphs = self._prepared(wanted, strict=strict)
            except KeyboardInterrupt:
                raise stopped_before(f"Saving {name}") from None
            kept = saved.names
            what = f"Saving {listed(kept)}"
            if interrupts.count:
                raise stopped_before(what)
            state = saved.snapshot.as_wire()
            message = ask(
                self._home, what, "save_state", table=saved.table, name=name, about=saved.about(), state=state
            )
            self._report(name, saved, graphs, set(wanted))
            if interrupts.count:
                raise stopped_after(what)
        taken = size(message.body["saved"]["bytes"])
        return f"Saved {listed(kept)} as {name} ({taken}). Restore them with %gpu_load {name}"

    def _prepared(self, wanted: list[str], *, strict: bool) -> tuple[Whole, list[str]]:
        """What to save, and the names that lose their computation graph. Raises if nothing is to be saved."""
        home = self._home
        if missing := sorted(set(wanted) - home.namespace.keys()):
            raise UsageError(f"%gpu_save: the notebook has no variable {', '.join(missing)}")
        names = set(wanted) or analysis.of_student(self._visible())
        saved = self._whole(names, None if wanted else home.shell.history_manager.input_hist_raw)
        graphs = self._graphs(saved)
        reasons = [f"{one} {reason}" for one, reason in sorted(saved.left.items())]
        if strict and (saved.left or graphs):
            lines = [*reasons, f"{lost_graphs(graphs)} stays in its kernel"] if graphs else reasons
            raise GpuServiceError(
                "Nothing was saved, because not everything can be saved: " + "; ".join(lines),
                "leave out --strict to save everything else",
            )
        if not saved.names:
            raise GpuServiceError(f"Nothing was saved: {'; '.join(reasons) or 'the notebook has no variables'}")
        return saved, graphs

    def _report(self, name: str, saved: Whole, graphs: list[str], wanted: set[str]) -> None:
        """Warns of what the state lacks."""
        for one, reason in sorted(saved.left.items()):
            sys.stderr.write(f"warning: {one} is not saved: {reason}\n")
        if graphs:
            warn(f"The values are saved without {lost_graphs(graphs)}. Compute them again where you need gradients")
        if wanted:
            others = analysis.of_student(self._visible()) - wanted
            for line in missing_of(self._home, saved.names, name, others.__contains__):
                warn(line)

    def _visible(self) -> set[str]:
        return analysis.visible_names(self._home.namespace, self._home.shell.user_ns_hidden)

    def save_all(self, name: str) -> None:
        """Called at the end of the kernel. If there are no variables, an earlier state of this name remains."""
        if analysis.of_student(self._visible()):
            self.save(name, [], strict=False)

    def load(self, name: str, wanted: list[str]) -> str:
        check_name(name)
        home = self._home
        message = ask(home, f"Loading {name}", "load_state", name=name)
        about = message.body["about"]
        if missing := sorted(set(wanted) - set(about["variables"])):
            message.close()
            has = listed(sorted(about["variables"]))
            raise UsageError(f"%gpu_load: the state {name} has no variable {', '.join(missing)}\nhint: it has {has}")
        _, lines = load(home, name, message, unit="%gpu_load", wanted=set(wanted) or None)
        if not wanted:
            lines += [f"Not included, because it could not be saved: {one}" for one in sorted(about["left_out"])]
        return "\n".join(lines)

    def text(self) -> str:
        return table_of(ask(self._home, "Asking", "list_states").body["states"])

    def delete(self, name: str) -> str:
        check_name(name)
        states = ask(self._home, "Deleting", "delete_state", name=name).body["states"]
        return f"Deleted {name}. Its space is freed within minutes\n{table_of(states)}"

    def _whole(self, names: set[str], cells: list[str] | None) -> Whole:
        """A state of all names that can be saved. `cells`: the inputs, if the whole notebook is saved."""
        home = self._home

        def extra(names: set[str]) -> dict[str, Any]:
            files = reach(names, home.namespace).files
            return {"sources": sources(home.shell, files), **home.surroundings.whole(cells)}

        with home.turn:
            by_reference(home.shell)
            saved = whole(lambda: Table(home.namespace, for_later=True), names, extra)
        for reason in saved.losses:
            warn(f"A part of the notebook is not saved: {reason}")
        return saved

    def _graphs(self, saved: Whole) -> list[str]:
        """Names that lead to tensors whose computation graph is not saved."""
        found = set[str]()
        for tensor in saved.table.with_graphs():
            holders = {name for name in set(saved.names) - found if saved.table.path(tensor, name) is not None}
            found |= holders
            if not holders and not found:
                found.add("a tensor")
        return sorted(found)


def lost_graphs(names: list[str]) -> str:
    return f"the computation graph of {listed(names)}"


def check_name(name: str) -> None:
    """Raises UsageError for a name that the broker does not accept."""
    if not re.fullmatch(rf"[\w.-]{{1,{LONGEST_NAME}}}", name) or name in (".", ".."):
        raise UsageError(
            f"{name!r} is not a valid name for a state\n"
            f"hint: choose 1 to {LONGEST_NAME} letters, digits, dots, hyphens and underscores"
        )


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
