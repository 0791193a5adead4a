"""A broker that is killed repeatedly while notebooks run cells, and what must be true afterwards."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from end_to_end.kernel import Cell, Kernel
from end_to_end.service import Service
from end_to_end.witness import Witness

LINES = 8
PAUSES = (0.1, 1.0)
"""Seconds between two kills: from a broker that hardly answers to one that all clients have found again."""


@dataclass(frozen=True)
class Report:
    kills: int
    seconds: float
    cells: int


@dataclass(frozen=True)
class Sent:
    notebook: int
    number: int
    cell: Cell

    @property
    def name(self) -> str:
        return f"{self.notebook}-{self.number}"

    @property
    def lines(self) -> list[str]:
        return [f"{self.name} line {line}" for line in range(LINES)]


def chaos(
    service: Service,
    new_kernel: Callable[..., Kernel],
    *,
    notebooks: int,
    cells: int,
    seed: int,
    kill_seconds: float,
    patience: float,
    least_kills: int = 0,
) -> Report:
    """Kills and restarts the broker at random moments for some time, on a slow machine until it has done so
    `least_kills` times. Then it waits until all cells have ended.

    Raises AssertionError unless every cell ran exactly once and each of its lines arrived exactly once and in order.
    """
    dice = random.Random(seed)
    witness = Witness(service.place.signs / "witness")
    # The last cells end after that many kills, however fast the cells are.
    enough = service.place.signs / "enough-kills"
    last = f"\nwhile not os.path.exists({str(enough)!r}): time.sleep(0.01)"
    # Each has a separate person: kernels that share a history would wait for its lock, and say so in a cell's output.
    homes = [str(service.place.folder / f"ipython-{notebook}") for notebook in range(notebooks)]
    kernels = [service.kernel(new_kernel, IPYTHONDIR=home) for home in homes]
    for kernel in kernels:
        kernel.run("values = []").ok()
    began = time.monotonic()
    sent = []
    for number in range(cells):
        end = last if number == cells - 1 else ""
        for notebook, kernel in enumerate(kernels):
            body = code(f"{notebook}-{number}", number, witness.path, dice)
            sent.append(Sent(notebook, number, kernel.begin(body + end)))
    kills = 0
    next_kill = began
    if not least_kills:
        enough.touch()
    while not all(one.cell.done for one in sent):
        now = time.monotonic()
        late = [one.name for one in sent if not one.cell.done]
        assert now - began < patience, f"after {patience} s and {kills} kills these have not ended: {late}"
        if now >= next_kill and (kills < least_kills or now - began < kill_seconds):
            service.kill("broker")
            kills += 1
            service.start_broker()
            if kills >= least_kills:
                enough.touch()
            next_kill = time.monotonic() + dice.uniform(*PAUSES)
        for kernel in kernels:
            kernel.pump(0.005)
    report = Report(kills=kills, seconds=time.monotonic() - began, cells=len(sent))
    check(sent, witness.names())
    witness.close()
    for kernel in kernels:
        assert kernel.evaluate("values") == list(range(cells))
    return report


def code(name: str, number: int, runs: Path, dice: random.Random) -> str:
    """A cell that also tells the witness its name."""
    pauses = [round(dice.uniform(0, 0.06), 3) for _ in range(LINES)]
    return (
        "%%gpu\nimport os, time\n"
        f"with open({str(runs)!r}, 'a') as runs:\n    runs.write({name + chr(10)!r})\n"
        f"for line, pause in enumerate({pauses}):\n"
        f"    print({name!r}, 'line', line, flush=True)\n"
        "    time.sleep(pause)\n"
        f"values.append({number})"
    )


def check(sent: list[Sent], witnesses: list[str]) -> None:
    for one in sent:
        result = one.cell.so_far.ok()
        assert result.stdout.splitlines() == one.lines, f"{one.name}: {result.stdout}"
    assert sorted(witnesses) == sorted(one.name for one in sent)
