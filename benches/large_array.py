"""A `%%gpu` cell that touches 100 MB, compared with a plain copy of the same bytes and with ipyparallel.

Cold: the array is new to the session. Warm: it is there already and unchanged. Changed: the cell writes to all of it.
With ipyparallel, the user does by hand what the cell does by itself: push, execute, pull.
"""

from __future__ import annotations

from typing import Any

import ipyparallel
import numpy as np
from measuring import Kernel, kernels, private_place, repeated, report

BYTES = 100_000_000
RUNS = 7
CASES = ("cold", "warm", "changed")


def main() -> None:
    with private_place() as place:
        with kernels(place, "baton") as (kernel,):
            rows = {f"`%%gpu`, {name}": times for name, times in on_baton(kernel).items()}
        rows |= {f"ipyparallel, {name}": times for name, times in on_ipyparallel().items()}
    rows["memcpy"] = on_memcpy()
    copy = rows["memcpy"]["p50_ms"]
    for row in rows.values():
        row["times memcpy"] = round(row["p50_ms"] / copy, 1)
    report("large-array", rows, {f"against ipyparallel, {case}": faster(rows, case) for case in CASES})


def faster(rows: dict[str, dict[str, Any]], case: str) -> str:
    ratio = rows[f"ipyparallel, {case}"]["p50_ms"] / rows[f"`%%gpu`, {case}"]["p50_ms"]
    return f"{ratio:.1f} times as fast"


def on_baton(kernel: Kernel) -> dict[str, dict[str, Any]]:
    make = f"x = np.random.default_rng().random({BYTES // 8})"
    kernel.run("import numpy as np").ok()
    kernel.gpu("pass").ok()
    read, write = "first = x[0]", "x += 1"
    return {
        "cold": repeated(lambda: kernel.gpu(read).ok(), before=lambda: kernel.run(make).ok()),
        "warm": repeated(lambda: kernel.gpu(read).ok()),
        "changed": repeated(lambda: kernel.gpu(write).ok()),
    }


def on_ipyparallel() -> dict[str, dict[str, Any]]:
    data = np.random.default_rng().random(BYTES // 8)
    with ipyparallel.Cluster(n=1, log_level=40) as client:
        engine = client[0]
        engine.block = True

        def touch(body: str, result: str) -> None:
            engine.push({"x": data})
            engine.execute(body)
            engine.pull(result)

        read = repeated(lambda: touch("first = x[0]", "first"))
        write = repeated(lambda: touch("import numpy; x = x + 1", "x"))
    # It does not remember what an engine holds: by hand, a push always costs the same.
    return {"cold": read, "warm": read.copy(), "changed": write}


def on_memcpy() -> dict[str, Any]:
    source = np.random.default_rng().random(BYTES // 8)
    target = np.zeros_like(source)
    return repeated(lambda: np.copyto(target, source))


if __name__ == "__main__":
    main()
