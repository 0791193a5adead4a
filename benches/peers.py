"""The same cells with other tools, each in a separate notebook, all measured by the same client.

Baton gets `%%gpu` and nothing else. The other tools are told by hand which names to send and to return.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from measuring import FOLDER, Kernel, Place, kernels, private_place, repeated, report
from workloads import ALL, Workload

PEERS = {"cloudpickle, socket": "Socket", "ipyparallel": "Ipyparallel", "dill": "Dill"}
BATON = "`%%gpu`"
FAILS = "fails"
Run = Callable[[Kernel, Workload], None]


def main() -> None:
    rows: dict[str, dict[str, Any]] = {workload.name: {} for workload in ALL}
    with private_place() as place, ExitStack() as stack:
        tools = {tool: stack.enter_context(started(place, tool)) for tool in (BATON, *PEERS)}
        # A machine may become slower or faster within minutes, but hardly within one row.
        for workload, (tool, (kernel, run)) in itertools.product(ALL, tools.items()):
            try:
                rows[workload.name][f"{tool}, ms"] = median(kernel, run, workload)
            except AssertionError as error:
                rows[workload.name][f"{tool}, ms"] = FAILS
                sys.stderr.write(f"{tool}, {workload.name}: {str(error)[-500:]}\n")
    for workload in ALL:
        row = rows[workload.name]
        ours, *theirs = row.values()
        row["best peer / `%%gpu`"] = round(min(time for time in theirs if time != FAILS) / ours, 2)
        row["floor, ms"] = round(workload.work.floor_ms(), 1)
    behind = [name for name, row in rows.items() if row["best peer / `%%gpu`"] <= 1]
    report("peers", rows, {"not faster than every peer": ", ".join(behind) or "nowhere"})


@contextmanager
def started(place: Place, tool: str) -> Iterator[tuple[Kernel, Run]]:
    with kernels(place, "baton" if tool == BATON else "python3") as (kernel,):
        kernel.run("import numpy as np").ok()
        if tool == BATON:
            kernel.gpu("pass").ok()
            yield kernel, lambda kernel, workload: kernel.gpu(workload.cell).ok() and None
            return
        kernel.run(f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import peer_cells").ok()
        kernel.run(f"remote = peer_cells.{PEERS[tool]}(globals())").ok()
        try:
            yield kernel, by_hand
        finally:
            kernel.run("remote.close()").ok()


def by_hand(kernel: Kernel, workload: Workload) -> None:
    kernel.run(f"remote.cell({workload.cell!r}, {workload.takes!r}, {workload.gives!r})").ok()


def median(kernel: Kernel, run: Run, workload: Workload) -> float:
    kernel.run(workload.setup).ok()

    def before() -> None:
        kernel.run(workload.before).ok()

    for _ in range(workload.warm_up):
        before()
        run(kernel, workload)
    found = repeated(lambda: run(kernel, workload), before, min(workload.runs, 5))
    for name in workload.tidy:
        kernel.run(f"{name} = None").ok()
    return float(found["p50_ms"])


if __name__ == "__main__":
    main()
