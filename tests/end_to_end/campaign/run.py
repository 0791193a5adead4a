"""One campaign: its service, its notebooks, its faults, and the checks after all cells have ended."""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from end_to_end.campaign.faults import FAULTS, Fault, Pause
from end_to_end.campaign.jobs import disagreements
from end_to_end.campaign.outcome import Kind
from end_to_end.campaign.stage import Stage
from end_to_end.campaign.student import Ran, Student

PAUSE_SECONDS = 2.5
"""The longest time between two faults."""
CALM_AFTER_SECONDS = 30.0
"""While a cell takes longer than this, no fault begins, so that it can end within its bound."""


@dataclass(frozen=True)
class Campaign:
    seed: int
    cells: int
    faults: Collection[str] = tuple(FAULTS)
    notebooks: int = 8
    logs: Path | None = None
    """Where the logs of a campaign with violations are kept."""


@dataclass
class Findings:
    """Results of one campaign, or of several together."""

    plan: str = ""
    seconds: float = 0.0
    cells: Counter[str] = field(default_factory=Counter)
    """The number of cells by how they ended."""
    faults: Counter[str] = field(default_factory=Counter)
    losses: int = 0
    """The number of reports to notebooks that results of completed cells are lost."""
    violations: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        self.seconds += other.seconds
        self.cells += other.cells
        self.faults += other.faults
        self.losses += other.losses
        self.violations += other.violations


def run(campaign: Campaign) -> Findings:
    """Never raises for an error of the service: those are in the findings."""
    dice = random.Random(campaign.seed)
    stage = Stage(dice)
    findings = Findings(plan=str(stage.plan))
    began = time.monotonic()
    each = -(-campaign.cells // campaign.notebooks)
    students = [
        Student(stage, number, campaign.seed, each, findings.violations.append) for number in range(campaign.notebooks)
    ]
    try:
        stage.start()
        for student in students:
            student.start()
        break_things(stage, dice, campaign.faults, students, findings)
        for student in students:
            student.join()
        ran = [one for student in students for one in student.ran]
        findings.cells += Counter(one.outcome.kind.value for one in ran)
        findings.losses = sum(one.outcome.taken_back > 0 for one in ran)
        findings.violations += witnessed_wrongly(ran, stage.witness.names())
        findings.violations += disagreements(stage, ran)
        findings.violations += stage.bad_lines()
    except Exception:
        findings.violations.append(f"the campaign could not go on: {traceback.format_exc()}")
    finally:
        if campaign.logs is not None and findings.violations:
            stage.keep_logs(campaign.logs / str(campaign.seed))
        findings.violations += [f"still runs at the end: {left}" for left in stage.close()]
    for student in students:
        findings.faults += student.own_faults
    findings.seconds = time.monotonic() - began
    return findings


def break_things(
    stage: Stage, dice: random.Random, names: Collection[str], students: list[Student], findings: Findings
) -> None:
    """Causes one fault after another until the students have sent all their cells."""
    suitable = [FAULTS[name] for name in names if FAULTS[name].suits(stage)]
    finished = threading.Event()

    def watch() -> None:
        for student in students:
            student.cells_ended.wait()
        finished.set()

    def pause(seconds: float) -> None:
        finished.wait(seconds)

    threading.Thread(target=watch, name="watch", daemon=True).start()
    try:
        while not finished.wait(dice.uniform(0, PAUSE_SECONDS)):
            while any(student.waits_long(CALM_AFTER_SECONDS) for student in students):
                finished.wait(0.1)
            if suitable:
                break_one(stage, dice.choice(suitable), dice, pause, findings)
    except Exception as error:
        findings.violations.append(f"the service did not come back: {type(error).__name__}: {error}")
    finally:
        stage.over.set()


def break_one(stage: Stage, one: Fault, dice: random.Random, pause: Pause, findings: Findings) -> None:
    findings.faults[one.name] += 1
    stage.fault_begins(one.name)
    try:
        one.break_it(stage, dice, pause)
        dead = stage.revive()
    finally:
        stage.fault_ends()
    if dead and not one.ends:
        findings.violations.append(f"after '{one.name}': {' and '.join(dead)} ended by itself")


def witnessed_wrongly(ran: Iterable[Ran], witnesses: list[str]) -> list[str]:
    """Checks that each cell ran at most once, and that a cell that ended normally ran exactly once."""
    times = Counter(witnesses)
    wrong = []
    for one in ran:
        if not one.plan.steps:  # a look at the variables
            continue
        count = times[one.plan.name]
        fine = count == 1 if one.outcome.kind in (Kind.OK, Kind.RAISED) else count <= 1
        if not fine:
            wrong.append(f"{one.plan.name} ran {count} times ({one.outcome.kind.value})\n{one.plan.code()}")
    return wrong
