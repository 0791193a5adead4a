"""What an empty `%%gpu` cell costs in a warm session, compared with an ordinary empty cell in the same run."""

from __future__ import annotations

from measuring import kernels, milliseconds, private_place, report, spread

CELLS = 300
TARGET_P50_MS = 10
TARGET_P99_MS = 25


def main() -> None:
    with private_place() as place, kernels(place, "baton") as (kernel,):
        for _ in range(20):
            kernel.run("pass")
            kernel.gpu("pass").ok()
        ordinary, on_gpu = [], []
        for _ in range(CELLS):
            ordinary.append(milliseconds(lambda: kernel.run("pass")))
            on_gpu.append(milliseconds(lambda: kernel.gpu("pass")))
    rows = {"ordinary cell `pass`": spread(ordinary), "`%%gpu` cell `pass`, warm": spread(on_gpu)}
    cell = rows["`%%gpu` cell `pass`, warm"]
    p50, p99 = cell["p50_ms"], cell["p99_ms"]
    report(
        "warm-gpu-cell",
        rows,
        {
            "p50": f"{p50} ms (target: below {TARGET_P50_MS} ms)",
            "p99": f"{p99} ms (target: below {TARGET_P99_MS} ms)",
            "target met": p50 < TARGET_P50_MS and p99 < TARGET_P99_MS,
        },
    )


if __name__ == "__main__":
    main()
