"""How long state takes on its way, on one machine, against what the memory itself allows.

Cold: 1 GB is new to the session. Dirty: 1 % of it, spread over it, changed at home. Unchanged: the session holds 4 GB,
and the cell touches 1 MB. The floors are measured in the same run: a copy into fresh memory, and reading once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from measuring import Kernel, kernels, milliseconds, private_place, report

BYTES = 1_000_000_000
RUNS = 5
SPREAD = 1000
"""Into how many places the change of 1 % goes."""

MAKE = f"x = np.random.default_rng().random({BYTES // 4}, dtype='float32')"
CHANGE = f"""
step = len(x) // {SPREAD}
for start in range(0, len(x) - step, step):
    x[start : start + step // 100] += 1
"""


def main() -> None:
    with private_place() as place, kernels(place, "baton") as (kernel,):
        kernel.run("import numpy as np").ok()
        rows = on_baton(kernel)
    rows |= floors()
    cold, dirty = ratio(rows, "cold", "copy into fresh memory"), ratio(rows, "dirty", "reading once")
    held = ratio(rows, "unchanged", "empty cell")
    report(
        "moving-state",
        rows,
        {
            "cold 1 GB against a copy into fresh memory (at most 3)": cold,
            "1 % of 1 GB dirty against reading 1 GB once (at most 1.3)": dirty,
            "1 MB touched beside 4 GB against an empty cell (at most 2)": held,
        },
    )


def ratio(rows: dict[str, dict[str, Any]], what: str, floor: str) -> float:
    return round(rows[what]["p50_ms"] / rows[floor]["p50_ms"], 2)


def on_baton(kernel: Kernel) -> dict[str, dict[str, Any]]:
    def cell(body: str) -> Callable[[], object]:
        return lambda: kernel.gpu(body).ok()

    def make() -> None:
        kernel.run(MAKE).ok()

    def change() -> None:
        kernel.run(CHANGE).ok()

    cell("pass")()
    cold = repeated(cell("first = x[0]"), before=make)
    dirty = repeated(cell("first = x[0]"), before=change)
    kernel.run("x = None\nlarge = [np.ones(125_000_000) for _ in range(4)]\nsmall = np.ones(131_072)").ok()
    cell("total = sum(part[0] for part in large)")()
    cell("small[0] += 1")()
    unchanged = repeated(cell("small[0] += 1"), runs=20)
    return {"cold": cold, "dirty": dirty, "unchanged": unchanged, "empty cell": repeated(cell("pass"), runs=20)}


def floors() -> dict[str, dict[str, Any]]:
    source = np.random.default_rng().random(BYTES // 4, dtype="float32")
    return {
        "copy into fresh memory": repeated(lambda: source.copy()),
        "reading once": repeated(lambda: source.view("int64").max()),
    }


def repeated(
    work: Callable[[], object], before: Callable[[], object] = lambda: None, runs: int = RUNS
) -> dict[str, Any]:
    times = []
    for _ in range(runs):
        before()
        times.append(milliseconds(work))
    return {"p50_ms": round(statistics.median(times), 1), "max_ms": round(max(times), 1), "runs": runs}


if __name__ == "__main__":
    main()
