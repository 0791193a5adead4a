"""How much longer an ordinary cell takes than on plain ipykernel: 3 alternating rounds of 1000 cells on each."""

from __future__ import annotations

import gc

from measuring import Kernel, kernels, milliseconds, private_place, report, spread

ROUNDS = 3
CELLS = 1000
TARGETS_MS = {"p50_ms": 0.05, "p99_ms": 0.3}
PLAIN, SHARED = "plain ipykernel", "Python (shared GPU)"


def one_round(plain: Kernel, shared: Kernel) -> dict[str, list[float]]:
    """Alternates, with each first equally often, and without the client's ever slower garbage collections."""
    both = [(PLAIN, plain), (SHARED, shared)]
    times: dict[str, list[float]] = {PLAIN: [], SHARED: []}
    gc.collect()
    gc.disable()
    for turn in range(CELLS):
        for name, kernel in both if turn % 2 else reversed(both):
            times[name].append(milliseconds(lambda kernel=kernel: kernel.run("pass")))
    gc.enable()
    return times


def extra(times: dict[str, list[float]]) -> dict[str, float]:
    before, after = spread(times[PLAIN]), spread(times[SHARED])
    return {what: round(after[what] - before[what], 3) for what in TARGETS_MS}


def main() -> None:
    with private_place() as place, kernels(place, "python3", "baton") as (plain, shared):
        for kernel in (plain, shared):
            for _ in range(20):
                kernel.run("pass")
        rounds = [one_round(plain, shared) for _ in range(ROUNDS)]
    times = {name: [time for one in rounds for time in one[name]] for name in (PLAIN, SHARED)}
    more = extra(times)
    report(
        "ordinary-cell",
        {name: spread(taken) for name, taken in times.items()},
        {
            f"extra {what.removesuffix('_ms')}": f"{more[what]} ms (target: at most {target} ms; of each round: "
            f"{', '.join(str(extra(one)[what]) for one in rounds)})"
            for what, target in TARGETS_MS.items()
        }
        | {"target met": all(more[what] <= target for what, target in TARGETS_MS.items())},
    )


if __name__ == "__main__":
    main()
