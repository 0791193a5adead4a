"""How long it takes to hand the GPU from one program to the next, and what a launch costs with time-sharing.

A hand-over: one program has the GPU and its cell ends, while another waits at the gate with a short kernel. The time
runs from that end to the kernel's, without the kernel's time alone. If both fit, no memory moves. Otherwise one
program's memory leaves and the other's returns; that is compared with the speed of the link with pinned memory.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from programs import Card, Running, against, arguments, card, running, say

from end_to_end.timeshare import Timeshare, timeshare  # isort: skip

ROUNDS = 20
LAUNCHES, LAUNCH_ROUNDS = 40_000, 10
FITS_TARGET_MS = 1.0
LINK_TARGET = 0.8
LAUNCH_TARGET_NS = 50
# Share of the memory that the two programs may use together.
SIZES = {"both fit": 0.02, "a tenth moves": 0.1, "half moves": 0.5}
SMALL = 16 << 20
PATIENCE_SECONDS = 60


def main() -> None:
    options = arguments(__doc__).parse_args()
    here = card(options)
    rows: dict[str, dict[str, Any]] = {}
    verdict: dict[str, str] = {}

    def arm(name: str, measure: Callable[[], dict[str, Any]]) -> None:
        try:
            rows[name] = measure()
        except Exception as error:  # after any error, the other arms still run
            rows[name] = {"result": f"failed: {error}"}
        say(rows, verdict)

    arm("the link", lambda: link(here))
    for name, part in SIZES.items():
        arm(f"hand-over, {name}", lambda part=part: hand_over(here, part))
    both = functools.cache(lambda: launches(here))
    for how in ("alone", "in turns"):
        arm(f"launches, {how}", lambda how=how: both()[how])
    judge(rows, verdict)
    say(rows, verdict)


def link(here: Card) -> dict[str, Any]:
    with running(here, max(SMALL, here.usable_bytes // 4), {}) as (program,):
        return measured(program.does("copies"))


def measured(found: dict[str, float]) -> dict[str, Any]:
    return {"result": "measured"} | {key: rounded(value) for key, value in found.items()}


def rounded(value: float) -> float:
    """To one decimal, or to three digits if those are more: on a busy machine, a rate may be very low."""
    return round(value, 1) if value >= 100 else float(f"{value:.3g}")


def hand_over(here: Card, part: float) -> dict[str, Any]:
    """The cap admits both programs only in the case that measures this."""
    size = int(part * here.usable_bytes)
    fits = part == SIZES["both fit"]
    cap = here.usable_bytes if fits else int(1.5 * size)
    with (
        timeshare(2, cap, here.host_bytes) as end,
        running(here, size, end.environment(1), end.environment(2)) as programs,
    ):
        alone = statistics.median(kernel_ms(programs[0]) for _ in range(ROUNDS))
        end.usage(1), end.usage(2)
        times = [one_hand_over(end, programs, count % 2) - alone for count in range(ROUNDS)]
        used = [end.usage(session) for session in (1, 2)]
        right = all(program.does("check")["right"] for program in programs)
    moved, seconds = (sum(one[key] for one in used) for key in ("moved_bytes", "moving_s"))
    if fits == bool(moved):
        raise RuntimeError(f"{moved} bytes moved")
    rate = {"gb_per_s": rounded(moved / seconds / 1e9)} if moved else {}
    found = {"p50_ms": round(statistics.median(times), 2), "max_ms": round(max(times), 2)}
    return {"result": "right" if right else "wrong numbers"} | found | rate


def kernel_ms(program: Running) -> float:
    begin = time.perf_counter()
    return 1e3 * (program.does("touch")["ended_at"] - begin)


def one_hand_over(end: Timeshare, programs: list[Running], holder: int) -> float:
    """Milliseconds. Processes on one machine share one clock."""
    other = 1 - holder
    end.started(holder + 1)
    programs[holder].does("touch")
    end.started(other + 1)
    end.usage(other + 1)
    programs[other].ask("touch")
    until = time.monotonic() + PATIENCE_SECONDS
    while not end.usage(other + 1)["waited_s"]:
        if time.monotonic() > until:
            raise RuntimeError("a program did not wait for its turn")
    begin = time.perf_counter()
    end.ended(holder + 1)
    took = programs[other].answer()["ended_at"] - begin
    end.ended(other + 1)
    return 1e3 * took


def launches(here: Card) -> dict[str, dict[str, Any]]:
    """Two programs on one processor; the best of alternating rounds. Some processors are farther from the GPU."""
    with (
        timeshare(1, here.usable_bytes, here.host_bytes) as end,
        running(here, SMALL, {}, end.environment(1)) as programs,
    ):
        processor = {min(os.sched_getaffinity(0))}
        for program in programs:
            os.sched_setaffinity(program.process.pid, processor)
        count = LAUNCHES // LAUNCH_ROUNDS
        rounds = [[program.does("launches", count) for program in programs] for _ in range(LAUNCH_ROUNDS)]
    best = [{key: min(one[key] for one in found) for key in found[0]} for found in zip(*rounds, strict=True)]
    return dict(zip(("alone", "in turns"), map(measured, best), strict=True))


def judge(rows: dict[str, dict[str, Any]], verdict: dict[str, str]) -> None:
    fits = rows["hand-over, both fit"].get("p50_ms")
    if fits is not None:
        verdict["hand-over, both fit"] = against(fits, FITS_TARGET_MS, fits <= FITS_TARGET_MS, " ms")
    rates = [row["gb_per_s"] for row in rows.values() if "gb_per_s" in row]
    if rates and "out_gb_per_s" in rows["the link"]:
        pinned = (rows["the link"]["out_gb_per_s"] + rows["the link"]["in_gb_per_s"]) / 2
        part = round(max(rates) / pinned, 2)
        verdict["moves against the link"] = against(part, LINK_TARGET, part >= LINK_TARGET)
    alone, gated = (rows[f"launches, {how}"].get("submitted_ns") for how in ("alone", "in turns"))
    if alone and gated:
        extra = round(gated - alone, 1)
        verdict["a launch in turns"] = against(extra, LAUNCH_TARGET_NS, extra <= LAUNCH_TARGET_NS, " ns")


if __name__ == "__main__":
    main()
