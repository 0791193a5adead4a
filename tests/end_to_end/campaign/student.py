"""One notebook of a campaign: it runs random cells, presses stop, restarts its kernel, and reports contradictions."""

from __future__ import annotations

import ast
import os
import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from end_to_end.campaign import outcome as outcomes
from end_to_end.campaign.cells import LOOK, SETUP, VARIABLES, CellPlan, Step, random_cell
from end_to_end.campaign.faults import FAULTS
from end_to_end.campaign.model import Model
from end_to_end.campaign.outcome import Kind, Outcome
from end_to_end.campaign.stage import KEPT_FILES, Stage
from end_to_end.kernel import Cell
from end_to_end.place import is_service, lives
from end_to_end.waiting import wait_until

QUIET_BOUND_SECONDS = 30.0
"""A cell that no fault affects ends within this time, after earlier cells. All bounds are for an idle machine."""
MOST_BUSY = 5.0
"""The largest factor by which bounds grow with the number of processes per core that want to run."""
TICK_SECONDS = 0.01


@dataclass(frozen=True)
class Ran:
    """One cell that was sent, and its end as its client saw it."""

    plan: CellPlan
    notebook: int
    outcome: Outcome
    when: tuple[float, float]
    """When it was sent and when its end was seen, in seconds since 1970."""


class Hung(Exception):
    """A cell has not ended within its bound."""


class Student(threading.Thread):
    def __init__(self, stage: Stage, number: int, seed: int, cells: int, complain: Callable[[str], None]) -> None:
        super().__init__(name=f"notebook-{number}", daemon=True)
        self.ran: list[Ran] = []
        self.cells_ended = threading.Event()
        """Set when all cells but the last one have ended; that one runs after all faults."""
        self.waits_since: float | None = None
        """When the awaited cell was sent, or the cell before it ended."""
        self.own_faults: Counter[str] = Counter()
        self._stage = stage
        self._number = number
        self._seed = seed
        self._cells = cells
        self._complain_with = complain
        self._sent = 0
        self._sent_at = time.time()
        self._model = Model(stage.plan.grid_words, dict(KEPT_FILES), mirrored=stage.plan.files == "mirror")

    def waits_long(self, seconds: float) -> bool:
        since = self.waits_since
        return since is not None and time.monotonic() - since > seconds

    def _complain(self, text: str) -> None:
        self._complain_with(f"notebook {self._number}: {text}")

    def _dice(self, number: int) -> random.Random:
        return random.Random(f"{self._seed} {self._number} {number}")

    # ---- from the first cell to the last

    def run(self) -> None:
        try:
            self._kernel = self._stage.start_kernel(self._number)
            try:
                self._set_up()
                while self._sent < self._cells and not self._stage.over.is_set():
                    self._step(self._dice(self._sent))
                self.cells_ended.set()
                self._stage.over.wait()
                self._look()
                self._run_last()
            finally:
                self._kernel.shutdown()
        except Exception as error:
            self._complain(f"the notebook could not go on: {type(error).__name__}: {error}\n{traceback.format_exc()}")
        finally:
            self.cells_ended.set()

    def _set_up(self) -> None:
        setup = SETUP.format(witness=str(self._stage.witness.path), grid_words=self._stage.plan.grid_words)
        self._kernel.run(f"{setup}{LOOK}\n_hidden = set(globals()) | {{'look'}}\n{VARIABLES}").ok()
        self._model.started_anew()

    def _step(self, dice: random.Random) -> None:
        """One cell, or a few that are sent at once."""
        plans = [self._next(dice) for _ in range(dice.choice([1, 1, 1, 1, 2, 3]))]
        end = dice.choice(["restart", "kill proxy", "kill kernel"]) if dice.random() < 0.03 else None
        end_after = dice.choice([dice.uniform(0, 0.1), dice.uniform(0, 1)])
        if len(plans) > 1 or end:  # a press would stop the cell that happens to run
            plans = [without_presses(plan) for plan in plans]
        self._sent_at = time.time()
        cells = [self._kernel.begin(plan.code()) for plan in plans]
        if end:
            self._end_kernel(end, plans, cells, end_after)
            return
        healthy = all(self._follow(plan, cell) for plan, cell in zip(plans, cells, strict=True))
        if not healthy:
            self._start_over()
        elif dice.random() < 0.6:
            self._look()

    def _next(self, dice: random.Random) -> CellPlan:
        number, self._sent = self._sent, self._sent + 1
        return random_cell(dice, f"cell-{self._number}-{number}", number, remote=dice.random() < 0.8)

    def _run_last(self) -> None:
        """After all faults, a cell works, at the latest the one after another error."""
        for attempt in range(3):
            plan = CellPlan(f"last-{self._number}-{attempt}", True, [Step("count += 1")], [0.0], raises=False)
            self._sent_at = time.time()
            if not self._follow(plan, self._kernel.begin(plan.code())):
                return
            if self.ran[-1].outcome.kind is Kind.OK:
                self._look()
                return
        self._complain(f"nothing fails any more, and cells still do not work\n{self._last()}")

    # ---- one cell

    def _follow(self, plan: CellPlan, cell: Cell) -> bool:
        """Waits for its end. False if the notebook cannot continue."""
        try:
            presses = self._wait(cell, plan.presses)
            faults = [FAULTS[name] for name in self._stage.faults_since(0)]
            short = any(fault.leaves_short for fault in faults)
            outcome = outcomes.read(plan, cell.so_far, presses, short=short)
            if not plan.remote and not presses and outcome.kind in (Kind.UNCHANGED, Kind.NOT_RUN):
                raise outcomes.Unclear(f"an ordinary cell was refused: {outcome}")
            if outcome.taken_back and not any(fault.ends for fault in faults):
                raise outcomes.Unclear(f"results of In[{outcome.taken_back}] are lost although its session lives")
        except (Hung, outcomes.Unclear, AssertionError) as wrong:
            self.waits_since = None
            self._complain(f"{wrong}\n{plan.code()}")
            self._note(plan, outcomes.gone())
            return False
        self._note(plan, outcome)
        self._model.ran(plan, outcome)
        return True

    def _note(self, plan: CellPlan, outcome: Outcome) -> None:
        self.ran.append(Ran(plan, self._number, outcome, (self._sent_at, time.time())))

    def _wait(self, cell: Cell, presses: list[float]) -> int:
        """Returns how often stop was pressed before it ended. Raises `Hung`."""
        began, pressed = time.monotonic(), 0
        self.waits_since = began
        while not cell.done:
            now = time.monotonic()
            if pressed < len(presses) and now - began >= presses[pressed]:
                self._kernel.interrupt()
                pressed += 1
                self.own_faults[f"interrupt {pressed}"] += 1
            self._kernel.pump(TICK_SECONDS)
            self._check_bound(began, cell)
        self.waits_since = None
        return pressed

    def _check_bound(self, began: float, cell: Cell) -> None:
        whole_since = self._stage.whole_since()
        if whole_since is None:
            return
        faults = self._stage.faults_since(began)
        bound = busy() * max([QUIET_BOUND_SECONDS, *(FAULTS[name].bound_seconds for name in faults)])
        waited = time.monotonic() - max(began, whole_since)
        if waited > bound:
            seen = f"output {cell.so_far.outputs}, lines of Baton {cell.so_far.notices[-1:]}, reply {cell.reply}"
            raise Hung(f"a cell has not ended {bound:.0f} s after everything was whole again: {seen}; faults: {faults}")

    # ---- checks

    def _look(self) -> None:
        """Checks the variables, which an ordinary cell shows, and the folder."""
        cell = self._kernel.begin("pass", user_expressions={"look": "look(globals(), _hidden)"})
        plan = CellPlan("look", remote=False, steps=[], pauses=[], raises=False)
        if not self._follow(plan, cell):
            self._start_over()
            return
        if not self.ran[-1].outcome.taken_back:
            self.ran.pop()
        shown = cell.so_far.reply["user_expressions"]["look"]
        look = ast.literal_eval(shown["data"]["text/plain"]) if shown["status"] == "ok" else str(shown)
        wrong = [self._model.saw_variables(look), self._model.saw_files(self._files())]
        for text in filter(None, wrong):
            self._complain(f"{text}\n{self._last()}")
        if any(wrong):
            self._start_over()

    def _last(self) -> str:
        """The last cells and how they ended."""
        last = [f"{ran.plan.name} {ran.outcome}" for ran in self.ran[-5:]]
        return "\n".join([*last, self.ran[-1].plan.code() if self.ran else ""])

    def _files(self) -> dict[str, str]:
        folder = self._stage.folder(self._number)
        paths = [path for path in folder.rglob("*") if path.is_file() and not hidden(path.relative_to(folder).parts)]
        found = {}
        for path in paths:
            with suppress(FileNotFoundError):  # a cell that is not followed any more has just removed it
                found[str(path.relative_to(folder))] = path.read_text()
        return found

    # ---- the end of a kernel

    def _end_kernel(self, how: str, plans: list[CellPlan], cells: list[Cell], seconds: float) -> None:
        """Ends the kernel in the middle of its cells."""
        self.own_faults[how] += 1
        until = time.monotonic() + seconds
        while time.monotonic() < until and not cells[-1].done:
            self._kernel.pump(TICK_SECONDS)
        for plan, cell in zip(plans, cells, strict=True):
            if cell.done:
                self._follow(plan, cell)
            else:
                self._note(plan, outcomes.gone())
                self._model.ran(plan, outcomes.gone())
        proxy = self._kernel.proxy
        if how != "restart":
            for process in kernels_of(proxy) if how == "kill kernel" else [proxy]:
                process.kill()
            wait_until(lambda: not lives(proxy), "the kernel has ended")
        self._kernel.restart()
        self._set_up()

    def _start_over(self) -> None:
        """After a violation: a new kernel, with the folder as it is."""
        self._kernel.restart()
        self._set_up()
        self._model.believe(self._files())


def busy() -> float:
    """How many times longer bounds are on a machine as busy as this one is now."""
    return min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), MOST_BUSY)


def kernels_of(proxy: psutil.Process) -> list[psutil.Process]:
    """The notebook kernel of a proxy, without services that the proxy started."""
    return [child for child in proxy.children() if not is_service(child)]


def without_presses(plan: CellPlan) -> CellPlan:
    return CellPlan(plan.name, plan.remote, plan.steps, plan.pauses, plan.raises)


def hidden(parts: tuple[str, ...]) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in parts)
