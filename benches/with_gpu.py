"""What `with gpu:` and `@gpu` cost next to an empty `%%gpu` cell, in turns in the same kernel, with a warm session."""

from __future__ import annotations

import operator
import statistics

from measuring import kernels, milliseconds, private_place, report, spread

ROUNDS = 300
TARGET_MORE_MS = 1.0
CELLS = {
    "`%%gpu` cell `pass`": "%%gpu\npass",
    "`with gpu: pass` in a cell": "with gpu:\n    pass",
    "`with gpu: pass` in a function": "block()",
    "empty `@gpu` function": "call()",
}
PREPARE = "from baton import gpu\ndef block():\n    with gpu:\n        pass\n@gpu\ndef call():\n    pass"


def main() -> None:
    with private_place() as place, kernels(place, "baton") as (kernel,):
        kernel.run(PREPARE).ok()
        for _ in range(20):
            for code in CELLS.values():
                kernel.run(code).ok()
        times: dict[str, list[float]] = {name: [] for name in CELLS}
        for _ in range(ROUNDS):
            for name, code in CELLS.items():
                times[name].append(milliseconds(lambda code=code: kernel.run(code)))
    cell, *others = times.values()
    more = [statistics.median(map(operator.sub, other, cell)) for other in others]
    report(
        "with-gpu",
        {name: spread(measured) for name, measured in times.items()},
        {
            "more than the cell of the same round, p50": ", ".join(f"{median:.2f} ms" for median in more),
            "target met": f"{max(more) < TARGET_MORE_MS} (below {TARGET_MORE_MS} ms)",
        },
    )


if __name__ == "__main__":
    main()
