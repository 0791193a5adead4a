"""How much longer an ordinary cell takes than on plain ipykernel: 1000 cells on each, in turns."""

from __future__ import annotations

from measuring import kernels, milliseconds, private_place, report, spread

CELLS = 1000
TARGET_EXTRA_MS = 0.05


def main() -> None:
    with private_place() as place, kernels(place, "python3", "baton") as (plain, shared):
        for kernel in (plain, shared):
            for _ in range(20):
                kernel.run("pass")
        times: dict[str, list[float]] = {"plain ipykernel": [], "Python (shared GPU)": []}
        for turn in range(CELLS):
            pairs = list(zip(times, (plain, shared), strict=True))
            for name, kernel in pairs if turn % 2 else reversed(pairs):
                times[name].append(milliseconds(lambda kernel=kernel: kernel.run("pass")))
    rows = {name: spread(taken) for name, taken in times.items()}
    before, after = rows.values()
    extra = round(after["p50_ms"] - before["p50_ms"], 3)
    report(
        "ordinary-cell",
        rows,
        {
            "extra p50": f"{extra} ms (target: at most {TARGET_EXTRA_MS} ms)",
            "extra p99": f"{round(after['p99_ms'] - before['p99_ms'], 3)} ms",
            "target met": extra <= TARGET_EXTRA_MS,
        },
    )


if __name__ == "__main__":
    main()
