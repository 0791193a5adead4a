"""How a cell ended for its client, as far as the model must know it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from end_to_end.campaign.cells import CellPlan
from end_to_end.results import Result

SAFE = "Your variables are as they were before the cell"
NOT_RUN = re.compile(r"This cell did not run\. Missing results")
TAKEN_BACK = re.compile(r"(?:So what|The results of) In\[(\d+)\].* lost")
HALF_FORMATTED = "Unexpected exception formatting exception. Falling back to standard exception\n"
"""IPython's output if stop is pressed while it formats an exception, in any kernel."""
FILES_STAY = re.compile(r"^warning: .*(could not be applied here|stays on the GPU machine)", re.MULTILINE)
"""The cell's changes to files could not be applied in the notebook's folder."""
RESOURCE_ERRORS = ("OSError", "MemoryError", "BlockingIOError", "PermissionError", "FileNotFoundError")
"""Errors of a cell's own code while a disk is full, or while there are too few descriptors or too little memory."""


class Kind(Enum):
    OK = "ok"
    RAISED = "its own exception"
    INTERRUPTED = "interrupted"
    DISTURBED = "its own code had no disk, memory or descriptors"
    UNCHANGED = "a service error, as before the cell"
    NOT_RUN = "not run"
    GONE = "the kernel was ended"


@dataclass(frozen=True)
class Outcome:
    kind: Kind
    number: int
    """In[number]; 0 if the client does not know it."""
    lines: int
    """The number of complete lines in the output."""
    presses: int
    taken_back: int = 0
    """The first In[n] whose effect had been lost before this cell, as the student was told; 0 if none."""
    files_stay: bool = False
    told: str = ""
    """The error as the student read it."""

    def __str__(self) -> str:
        told = self.told.splitlines()
        pressed = f", stop pressed {self.presses} times" if self.presses else ""
        return f"In[{self.number}] {self.kind.value}, {self.lines} lines{pressed}" + "".join(
            f"\n    | {line}" for line in told
        )


class Unclear(Exception):
    """The client saw something that no promise covers."""


def gone() -> Outcome:
    return Outcome(Kind.GONE, 0, 0, 0)


def read(plan: CellPlan, result: Result, presses: int, *, short: bool) -> Outcome:
    """Raises `Unclear` if the output or the error is not one that a student may see.

    `short`: disks, memory or descriptors may have been short.
    """
    lines = lines_of(plan, result.stdout.removesuffix(HALF_FORMATTED) if presses else result.stdout)
    kind = kind_of(plan, result, presses, short=short)
    if kind in (Kind.OK, Kind.RAISED) and lines != len(plan.lines):
        raise Unclear(f"the cell ended as '{kind.value}' with {lines} of its {len(plan.lines)} lines")
    number = int(result.reply.get("execution_count") or 0)
    lost = [int(first) for first in TAKEN_BACK.findall(result.stderr + result.plain_traceback)]
    told = result.stderr + ("" if kind in (Kind.OK, Kind.RAISED) else result.plain_traceback)
    files_stay = bool(FILES_STAY.search(result.stderr))
    return Outcome(kind, number, lines, presses, min(lost, default=0), files_stay, told)


def lines_of(plan: CellPlan, stdout: str) -> int:
    """Checks that each line is there once and in order; the last one may be incomplete."""
    *whole, rest = stdout.split("\n")
    expected = plan.lines
    torn = expected[len(whole)] if len(whole) < len(expected) else ""
    if whole != expected[: len(whole)] or not torn.startswith(rest):
        raise Unclear(f"lines that are lost, doubled or out of order: {stdout!r} instead of {expected}")
    return len(whole)


def kind_of(plan: CellPlan, result: Result, presses: int, *, short: bool) -> Kind:
    reply, text = result.reply, result.plain_traceback
    if reply["status"] == "ok":
        if plan.raises:
            raise Unclear("the cell ended ok although it raises")
        return Kind.OK
    if reply["status"] == "aborted":
        return Kind.NOT_RUN
    name, value = reply["ename"], reply["evalue"]
    if (name, value) == ("ValueError", plan.name) and plan.raises:
        return Kind.RAISED
    if NOT_RUN.search(text):
        return Kind.NOT_RUN
    if SAFE in text:
        return Kind.UNCHANGED
    if name == "KeyboardInterrupt" and presses:
        return Kind.INTERRUPTED
    if short and name in RESOURCE_ERRORS:
        return Kind.DISTURBED
    raise Unclear(f"an error that does not say whether the variables are safe: {name}: {value}\n{text}")
