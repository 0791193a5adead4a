"""`%gpu_undo`: undoes what the last `%%gpu` cell, block or call changed in the notebook.

The message with the changes kept what they replaced, so that it could fail as a whole. The log keeps this for the last
cells, up to a limit. Cells whose results arrived together can only be undone together.

**Invariant:** after an undo the next cell starts a new session, so notebook and session agree.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from IPython.core.error import UsageError

from baton_shim.base.interrupts import postponed
from baton_shim.base.link import LinkClosed
from baton_shim.notebook.status import listed, size
from baton_shim.state.holding import held_bytes

if TYPE_CHECKING:
    from baton_shim.notebook.home import Home
    from baton_shim.state import Table
    from baton_shim.state.delta import Undo

MOST_BYTES = 64 << 20
"""The most memory that one step may keep alive."""
MOST_STEPS = 8


class Unit(Protocol):
    """A cell, a block, a call or a load."""

    @property
    def number(self) -> int: ...

    @property
    def unit(self) -> str: ...


class NoUndo:
    """The log of a table whose changes cannot be undone."""

    def note(self, *of: object) -> None:
        pass

    table_ends = deferred_arrived = deferred_lost = note


@dataclass
class Step:
    """What is undone together: one cell, or several whose results arrived together."""

    table: Table
    units: list[tuple[int, str]] = field(default_factory=list)
    """The number of each cell, and whether it is the cell, a block, a call or a load."""
    undos: list[Undo] = field(default_factory=list)
    last_names: list[str] | None = None
    """The names at the end of the table."""
    arrived: bool = True
    bytes: int | None = 0
    """The memory that it keeps alive. None: it would exceed the limit, so the step cannot be undone."""

    def title(self) -> str:
        return " and ".join(dict.fromkeys(title(*unit) for unit in self.units))

    def names(self) -> list[str]:
        """The variables that it bound, deleted or changed."""
        if self.last_names is not None:
            return self.last_names
        return self.table.deferred.names(self.undos)

    def table_ends(self) -> None:
        """Nothing more of the table will arrive."""
        if self.last_names is None:
            self.last_names = self.names()

    def settle(self) -> None:
        """All results have arrived."""
        self.arrived = True
        if self.bytes is None:
            return
        kept = [held for undo in self.undos for held in undo.held()]
        memory = 2 * sum(undo.kept_bytes() for undo in self.undos)
        whole = memory <= MOST_BYTES and not any(undo.incomplete for undo in self.undos)
        below = held_bytes(kept, MOST_BYTES - memory) if whole else None
        if below is None:
            self.give_up()
        else:
            self.bytes = memory + below
            for undo in self.undos:
                undo.seal()

    def give_up(self) -> None:
        self.bytes = None
        for undo in self.undos:
            undo.room = 0
        self.undos = []


class UndoLog:
    """The last steps that can be undone, up to a limit of memory."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._steps: deque[Step] = deque(maxlen=MOST_STEPS)

    def note(self, cell: Unit, table: Table) -> None:
        """The changes of a cell have been applied, perhaps without bytes that arrive later."""
        undo, table.last_undo = table.last_undo, None
        assert undo is not None
        if not self._steps or self._steps[-1].arrived:
            self._steps.append(Step(table))
        step = self._steps[-1]
        step.units.append((cell.number, cell.unit))
        step.arrived = not table.deferred.numbers
        undo.room = MOST_BYTES // 2 - undo.kept_bytes()
        step.undos.append(undo)
        if step.bytes is None or sum(one.kept_bytes() for one in step.undos) > MOST_BYTES:
            step.give_up()
        if step.arrived:
            step.settle()

    def table_ends(self, table: Table) -> None:
        """The table is void, and only the log refers to it."""
        steps = [step for step in self._steps if step.table is table]
        if not steps or not all(step.arrived for step in steps):
            return
        for step in steps:
            step.table_ends()
        table.drop_all()

    def deferred_arrived(self) -> None:
        if self._steps and not self._steps[-1].arrived:
            step = self._steps[-1]
            step.settle()
            if not self._home.has(step.table):
                self.table_ends(step.table)

    def deferred_lost(self) -> None:
        """The cells have already been rolled back."""
        if self._steps and not self._steps[-1].arrived:
            self._steps.pop()

    def run(self) -> None:
        """Prints what was undone. Raises UsageError, and changes nothing, if that is impossible."""
        home = self._home
        with home.between_cells() as free:
            if not free:
                raise UsageError("A %%gpu cell is running\nhint: undo it when it has ended")
            with contextlib.suppress(LinkClosed):  # what has arrived can be undone without the proxy
                home.deferred.poll()
            if home.deferred.due:
                missing = (
                    f"{size(home.deferred.bytes())} of the results of {home.deferred.cells()} have not arrived yet"
                )
                raise UsageError(f"{missing}\nhint: try again later, or give them up with %gpu_reset --lose")
            step = self._steps[-1] if self._steps else None
            if step is None:
                raise UsageError("There is nothing to undo: %gpu_undo takes back what %%gpu cells changed")
            if step.bytes is None:
                raise UsageError(
                    f"{step.title()} cannot be undone: the earlier values take more than {size(MOST_BYTES)}, "
                    "so they were not kept\nhint: copy large variables before a %%gpu cell changes or replaces them"
                )
            if any(undo.overwritten() for undo in step.undos):
                raise UsageError(
                    f"{step.title()} cannot be undone: a later cell has changed an array that it changed, too"
                )
            names = step.names()
            what = f"{listed(names)} {'is' if len(names) == 1 else 'are'} as before. " if names else ""
            with postponed():
                self._steps.pop()
                step.table.roll_back(step.undos)
                home.void()
                home.forget_results([number for number, unit in step.units if unit == "cell"])
                print(f"Undone: {step.title()}. {what}The next %%gpu cell starts a new session")

    def text(self) -> str:
        """The steps that can be undone, the last one first."""
        lines = [f"{step.title()}: {describe(step)}" for step in reversed(self._steps)]
        return "\n".join(lines) if lines else "Nothing to undo"


def title(number: int, unit: str) -> str:
    return f"In[{number}]" if unit == "cell" else f"the {unit} of In[{number}]"


def describe(step: Step) -> str:
    if not step.arrived:
        return "its results have not arrived yet"
    if step.bytes is None:
        return f"cannot be undone, nor can the cells before it (more than {size(MOST_BYTES)} to keep)"
    return f"{', '.join(step.names()) or 'no variables'} ({size(step.bytes)} kept)"
