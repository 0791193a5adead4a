"""How long transferring state takes on one machine, compared with what the memory itself allows.

The limits are ratios within one run: to a copy of the same bytes, to reading them once, to pickle and to an empty cell.
`times the floor` compares with the formula in `workloads.py`, plus the time of an ordinary cell. Memory is the most
that all processes of a side hold, beyond what they held before and the state itself.

On a virtual machine that returns free memory to its host, the cost of memory that is new to a process varies tenfold
from one second to the next. So the copy that new state is compared with alternates with the cells that transfer it, and
the shortest times are compared, in which neither waited for the host.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from measuring import Kernel, Peak, kernels, milliseconds, private_place, repeated, report, sides, summary
from workloads import ALL, COLD, DIRTY, EMPTY, GIGABYTE, HELD, SMALL_NEW, SMALL_SAME, TRAINING_STEP, Workload

ORDINARY = 3.6
"""The limit for an empty cell, in ordinary cells: 10 ms, with 2.8 ms for an ordinary cell."""

LOADED = "empty cell, with PyTorch loaded and all of the above in the session"

MOVED = re.compile(r"Last cell, (?:to the session|home): (.*)")


def main() -> None:
    source = np.random.default_rng().random(GIGABYTE // 4, dtype="float32")
    copies: list[float] = []
    ordinary: list[float] = []

    with private_place() as place, kernels(place, "baton") as (kernel,):
        kernel.run("import numpy as np").ok()
        kernel.gpu("pass").ok()
        # Alternates with what it is compared with, because the machine's speed changes.
        in_turns: dict[str, Callable[[], None]] = {
            COLD.name: lambda: copies.append(milliseconds(source.copy)),
            EMPTY.name: lambda: ordinary.append(milliseconds(lambda: kernel.run("pass").ok())),
        }
        rows = {
            workload.name: measured(kernel, workload, ordinary, in_turns.get(workload.name, lambda: None))
            for workload in ALL
        }
        loaded = repeated(lambda: kernel.gpu(EMPTY.cell).ok(), runs=EMPTY.runs)
    rows |= {LOADED: loaded}
    rows |= {"ordinary cell": summary(ordinary), "copy into fresh memory": summary(copies)} | floors(source)

    def ratio(workload: Workload, floor: str, of: str = "p50_ms") -> float:
        return round(rows[workload.name][of] / rows[floor][of], 2)

    def excess(workload: Workload) -> str:
        return f"{rows[workload.name]['extra MB home']} and {rows[workload.name]['extra MB there']} MB"

    report(
        "moving-state",
        rows,
        {
            "empty warm cell, p50 (below 10 ms)": rows[EMPTY.name]["p50_ms"],
            f"empty warm cell against an ordinary cell (at most {ORDINARY})": ratio(EMPTY, "ordinary cell"),
            "cold 1 GB against a copy into fresh memory (at most 3)": ratio(COLD, "copy into fresh memory", "min_ms"),
            "1 % of 1 GB dirty against reading 1 GB once (at most 1.3)": ratio(DIRTY, "reading once"),
            "1 MB touched beside 4 GB against an empty cell (at most 2)": ratio(HELD, EMPTY.name),
            "the same against an empty cell after it": ratio(HELD, LOADED),
            "a million small objects against pickle and unpickle (at most 1.5)": ratio(SMALL_NEW, "pickle"),
            "the same, unchanged (at most 0.5)": ratio(SMALL_SAME, "pickle"),
            "what a training step moves, after the first": rows[TRAINING_STEP.name]["moved"],
            "memory beyond the state, at home and there: cold 1 GB (at most 100 MB)": excess(COLD),
            "memory beyond the state: 1 % dirty (at most 100 MB)": excess(DIRTY),
            "memory beyond the state: small objects (at most 64 MB)": excess(SMALL_NEW),
        },
    )


def measured(kernel: Kernel, workload: Workload, ordinary: list[float], in_turns: Callable[[], None]) -> dict[str, Any]:
    """Baton's times with one workload, and what a last, unmeasured cell transfers and holds."""
    kernel.run(workload.setup).ok()

    def before() -> None:
        in_turns()
        kernel.run(workload.before).ok()

    def cell() -> None:
        kernel.gpu(workload.cell).ok()

    for _ in range(workload.warm_up):
        before()
        cell()
    row = repeated(cell, before, workload.runs)
    row["times the floor"] = round(row["p50_ms"] / (workload.work.floor_ms() + median(ordinary)), 2)
    if not workload.warm_up:
        forget(kernel, workload.takes)
    before()
    with Peak(*sides(kernel)) as peak:
        cell()
    fresh = workload.state if not workload.warm_up else 0
    row |= {"extra MB home": peak.extra_mb(0), "extra MB there": peak.extra_mb(1, fresh)}
    row["moved"] = "; home: ".join(MOVED.findall(kernel.run("%gpu_status").ok().stdout))
    forget(kernel, workload.tidy)
    return row


def forget(kernel: Kernel, names: tuple[str, ...]) -> None:
    """Makes the session drop a name's value, by sending a new one."""
    for name in names:
        kernel.run(f"{name} = None").ok()
        kernel.gpu(f"{name}").ok()


def floors(source: np.ndarray[Any, Any]) -> dict[str, dict[str, Any]]:
    table = {number: f"name {number}" for number in range(1_000_000)}
    return {
        "copy into memory that is there": over(source),
        "reading once": repeated(lambda: source.view("int64").max()),
        "pickle": repeated(lambda: pickle.loads(pickle.dumps(table, protocol=5))),
    }


def over(source: np.ndarray[Any, Any]) -> dict[str, Any]:
    target = source.copy()
    return repeated(lambda: np.copyto(target, source))


if __name__ == "__main__":
    main()
