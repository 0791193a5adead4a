"""What a cell has reported as done stays done, whatever happens next: random sequences against a small model.

Every cell leaves its memory in the session, and changes all of it in place. Between and during the cells, the student
stops them once or twice, they crash, their session dies, the broker fails to store, is killed and started again, and
workers die.

`BATON_SEED` and `BATON_STEPS` repeat a sequence or lengthen it.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import psutil
import pytest
from end_to_end import Cell, Kernel, Result, Service, wait_until
from end_to_end.kernel import CATCHES_INTERRUPTS
from end_to_end.place import lives
from end_to_end.service import broken_store

SEEDS = [int(os.environ["BATON_SEED"])] if "BATON_SEED" in os.environ else [1, 2]
STEPS = int(os.environ.get("BATON_STEPS", "20"))
KEEPER = "baton-keeper"

CHANGE = "a += {number}; log.append({number}); view[0, 0]"
SLOW = CHANGE + "\nimport time\nprint('runs', flush=True)\nwhile True: time.sleep(60)"
SAFE = "Your variables are as they were before the cell"
LOST = re.compile(
    r"warning: The results of ((?:In\[\d+\](?: and )?)+) are lost: .*\nYour variables ([\w, ]+) are as they"
)


@dataclass
class Model:
    done: list[int] = field(default_factory=list)
    """The numbers of the cells whose changes the notebook has, in order."""
    cells: dict[int, int] = field(default_factory=dict)
    """Cells whose state may not have arrived: the number in In[...], and the cell's own number."""
    may_lose: bool = False
    """A worker has died since all state arrived."""

    def hear(self, result: Result) -> None:
        """Only reported cells are lost, and only if a worker died."""
        for cells, names in LOST.findall(result.stderr):
            assert self.may_lose, result.stderr
            assert {"a", "log"} <= set(names.split(", ")), result.stderr
            for number in re.findall(r"\d+", cells):
                self.done.remove(self.cells.pop(int(number)))

    def ran(self, number: int, result: Result) -> None:
        self.hear(result)
        if SAFE not in result.plain_traceback:
            self.done.append(number)
            self.cells[result.reply["execution_count"]] = number

    def look(self, result: Result) -> None:
        self.hear(result)
        assert result.stdout == f"{self.done} {[float(sum(self.done))]}\n", result.stderr
        self.cells.clear()
        self.may_lose = False


class Campaign:
    def __init__(self, service: Service, kernel: Kernel, dice: random.Random) -> None:
        self.service, self.kernel, self.dice = service, kernel, dice
        self.model = Model()
        self.worker = service.start_worker()
        self.number = 0
        self.began = 0.0
        self.trouble = threading.Thread()
        kernel.run(
            "import numpy as np\na = np.zeros((1000, 300)); view = a[::2]; log = []\n"
            "def look(): print(log, np.unique([*np.unique(a), *np.unique(view)]).tolist())"
        ).ok()

    def step(self) -> str:
        steps: dict[Callable[[], None], int] = {
            self.cell: 6,
            self.look: 3,
            self.fail: 1,
            self.stop: 2,
            self.stop_twice: 4,
            self.crash: 2,
            self.lose_session: 2,
            self.lose_store: 3,
            self.lose_broker: 2,
            self.lose_worker: 1,
        }
        (chosen,) = self.dice.choices(list(steps), list(steps.values()))
        chosen()
        return chosen.__name__

    # ---- actions of a student

    def begin(self, code: str) -> Cell:
        self.number += 1
        self.began = time.time()
        return self.kernel.begin("%%gpu\n" + code.format(number=self.number))

    def end(self, cell: Cell) -> None:
        self.model.ran(self.number, cell.finish())

    def cell(self) -> None:
        self.end(self.begin(CHANGE))

    def fail(self) -> None:
        self.end(self.begin(CHANGE + "\n1 / 0"))

    def stop(self) -> None:
        cell = self.begin(SLOW)
        if self.runs(cell):
            self.kernel.interrupt()
        self.end(cell)

    def stop_twice(self) -> None:
        cell = self.begin(f"{CHANGE}\n{CATCHES_INTERRUPTS}")
        if self.runs(cell):
            self.kernel.interrupt()
            wait_until_any(cell, "goes on")
            self.kernel.interrupt()
        self.end(cell)

    def runs(self, cell: Cell) -> bool:
        """Whether the cell runs; a worker that dies at the wrong moment ends it first."""
        wait_until_any(cell, "runs")
        return not cell.done

    def look(self) -> None:
        self.model.look(self.kernel.run("look()").ok())

    # ---- faults

    def crash(self) -> None:
        self.end(self.begin(CHANGE + "\nimport os; os._exit(3)"))

    def lose_session(self) -> None:
        """Kills the session once a keeper has its cells' state."""
        wait_until(self.is_settled, "the session has settled")
        for process in self.children():
            with suppress(psutil.NoSuchProcess):
                if process.name() != KEEPER:
                    process.kill()

    def is_settled(self) -> bool:
        """Whether a keeper is new enough: one that was forked before the last cell began keeps older state."""
        return (
            any(self.is_new_keeper(process) for process in self.children())
            or "Not here yet" not in self.kernel.run("%gpu_status").ok().stdout
        )

    def is_new_keeper(self, process: psutil.Process) -> bool:
        try:
            return process.name() == KEEPER and process.create_time() >= self.began
        except psutil.NoSuchProcess:
            return False

    def lose_store(self) -> None:
        self.meanwhile(self._without_store)

    def _without_store(self, seconds: float) -> None:
        with broken_store(self.service):
            threading.Event().wait(seconds)

    def lose_broker(self) -> None:
        self.meanwhile(self._without_broker)

    def _without_broker(self, seconds: float) -> None:
        self.service.kill("broker")
        threading.Event().wait(seconds)
        self.service.start_broker()

    def meanwhile(self, trouble: Callable[[float], None]) -> None:
        """Runs one fault at a time, while the student continues."""
        self.settle()
        self.trouble = threading.Thread(target=trouble, args=(self.dice.uniform(0.1, 3),))
        self.trouble.start()

    def settle(self) -> None:
        if self.trouble.ident is not None:
            self.trouble.join()

    def lose_worker(self) -> None:
        self.settle()
        self.service.kill(self.worker)
        self.model.may_lose = True
        self.worker = self.service.start_worker()

    def children(self) -> list[psutil.Process]:
        """The worker's child processes: sessions and keepers."""
        return [child for child in self.service.process(self.worker).children() if lives(child)]


def wait_until_any(cell: Cell, text: str) -> None:
    """Waits until the cell has printed this, or has ended."""
    while text not in cell.so_far.stdout and not cell.done:
        cell.kernel.pump(1)


@pytest.mark.timeout(600 + 30 * STEPS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_finished_cell_stays_finished(service: Service, new_kernel: Callable[..., Kernel], seed: int) -> None:
    dice = random.Random(seed)
    lane = "http" if seed % 2 else "auto"
    service.start_broker()
    campaign = Campaign(service, service.kernel(new_kernel, BATON_TRANSPORT=lane, BATON_CELL_BYTES="0"), dice)
    steps: list[str] = []
    try:
        for _ in range(STEPS):
            steps.append(campaign.step())
        campaign.settle()
        campaign.look()
    finally:
        campaign.settle()
        print(f"seed {seed}, lane {lane}: {', '.join(steps)}")
    assert campaign.number > 0
