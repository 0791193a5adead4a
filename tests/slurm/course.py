"""A course of real notebooks: each edits, runs cells, and checks its variables at the end."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from end_to_end import Kernel
from end_to_end.service import Service

AT_ONCE = 4
"""How many kernels start or end at the same time."""

LONGEST_CELL_SECONDS = 150


class Student:
    """A student whose cells add to variables, and record their runs in a file that no fault can reach."""

    def __init__(self, kernel: Kernel, number: int, witness: Path) -> None:
        self.kernel = kernel
        self.number = number
        self.dice = random.Random(number)
        self.cells = 0
        self.last_cell = ""
        self.completed: list[str] = []
        self.failures: list[str] = []
        kernel.run(
            "import os, time\n"
            "def mark(name):\n"
            f"    with open({str(witness)!r}, 'a') as file: file.write(f'{{name}} {{os.getpid()}}\\n')\n"
            "completed, by_name, last = [], {}, None"
        ).ok()

    def run(self, seconds: float) -> None:
        """Runs one cell. After an error the student runs a shorter one instead."""
        while not self._succeeds(seconds):
            seconds = min(seconds, 0.5)

    def work(self, cells: int, edit_seconds: float) -> None:
        """Runs this many cells, with time to think before each."""
        for _ in range(cells):
            threading.Event().wait(min(self.dice.expovariate(1 / edit_seconds), 2 * edit_seconds))
            self.run(self.dice.uniform(0.5, 1.5))

    def _succeeds(self, seconds: float) -> bool:
        name = self.last_cell = f"{self.number}-{self.cells}"
        self.cells += 1
        code = (
            f"mark({name!r})\ncompleted.append({name!r})\nby_name[{name!r}] = last = [{name!r}]\ntime.sleep({seconds})"
        )
        result = self.kernel.gpu(code, seconds=LONGEST_CELL_SECONDS)
        succeeded = result.reply["status"] == "ok"
        if succeeded:
            self.completed.append(name)
        else:
            self.failures.append(f"{result.reply['ename']}: {result.reply['evalue']}")
        return succeeded

    def has_what_it_completed(self) -> bool:
        """Also checks that names that were one object still are."""
        values = "completed, list(by_name), last is by_name[completed[-1]]"
        return bool(self.kernel.evaluate(values) == (self.completed, self.completed, True))


class Course:
    """The students of a service."""

    def __init__(self, service: Service, count: int) -> None:
        self.witness = service.place.folder / "witness"
        self.witness.touch()
        self._kernels: list[Kernel] = []

        def begin(number: int) -> Student:
            kernel = Kernel.start(service.place, transport="ipc", **service.access)
            self._kernels.append(kernel)
            return Student(kernel, number, self.witness)

        with ThreadPoolExecutor(AT_ONCE) as starters:
            self.students = list(starters.map(begin, range(count)))

    def close(self) -> None:
        with ThreadPoolExecutor(AT_ONCE) as enders:
            list(enders.map(Kernel.shutdown, self._kernels))

    def all(self, do: Callable[[Student], None], beside: Callable[[], None] = lambda: None) -> None:
        """Runs all students at the same time, and `beside` meanwhile."""
        with ThreadPoolExecutor(len(self.students)) as threads:
            doing = [threads.submit(do, student) for student in self.students]
            beside()
            for done in doing:
                done.result()

    @property
    def runs(self) -> Counter[str]:
        """How often each cell has run."""
        return Counter(name for name, _ in self._marks())

    @property
    def processes(self) -> dict[str, int]:
        """The process in which each cell has run, by its id."""
        return {name: int(process) for name, process in self._marks()}

    def _marks(self) -> list[list[str]]:
        return [line.split() for line in self.witness.read_text().splitlines()]

    @property
    def completed(self) -> Sequence[str]:
        return [name for student in self.students for name in student.completed]

    @property
    def failures(self) -> Sequence[str]:
        return [failure for student in self.students for failure in student.failures]
