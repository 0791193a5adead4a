"""A class on one GPU: 5 to 30 emulated students, each a separate program, with three times too much memory together.

A student thinks for 90 s, then runs a cell: 88 % short (median 0.7 s alone), 10.5 % medium (15 s), 1.5 % long (400 s);
all times are divided by ten. Each arm gets the same cells: as a worker lets them compute, in time slices of 20 s (also
divided by ten), and first come, first served. The result is how long short cells take, including waiting.
"""

from __future__ import annotations

import heapq
import random
import selectors
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from programs import Card, Running, against, arguments, card, running, say

from end_to_end.timeshare import Timeshare, timeshare  # isort: skip

SCALE = 10
THINK_S = 90 / SCALE
# Share of the cells, median of their time alone in seconds, spread.
KINDS = ((0.88, 0.7 / SCALE, 0.8), (0.105, 15 / SCALE, 0.5), (0.015, 400 / SCALE, 0.3))
SHORT_S = 5 / SCALE
TOO_MUCH = 3
CALIBRATION_PASSES = 50
# The targets are for times that are not divided by ten.
MEAN_TARGET_S, P99_TARGET_S = 2.0 / SCALE, 12.0 / SCALE
# The quantum in milliseconds; `None`: as a worker runs cells.
ARMS: dict[str, int | None] = {
    "as a worker's cells": None,
    "in turns of 20 s": 20_000 // SCALE,
    "first come, first served": 10**9,
}


class Cell(NamedTuple):
    thinks_s: float
    passes: int
    is_short: bool


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--students", default="5,10,20,30")
    options = parser.parse_args()
    here = card(options)
    rows: dict[str, dict[str, Any]] = {}
    verdict: dict[str, str] = {}
    for count in sorted(map(int, options.students.split(",")), reverse=True):
        for arm, quantum in ARMS.items():
            what = f"{count} students, {arm}"
            try:
                rows[what] = measure(here, count, quantum, options.seconds)
            except Exception as error:  # after any error, the other arms still run
                rows[what] = {"result": f"failed: {error}"}
            if quantum is None and "mean_s" in rows[what]:
                mean, p99 = rows[what]["mean_s"], rows[what]["p99_s"]
                verdict[f"{count} students, mean"] = against(mean, MEAN_TARGET_S, mean <= MEAN_TARGET_S, " s")
                verdict[f"{count} students, p99"] = against(p99, P99_TARGET_S, p99 <= P99_TARGET_S, " s")
            say(rows, verdict)


def measure(here: Card, count: int, quantum: int | None, seconds: float) -> dict[str, Any]:
    size = TOO_MUCH * here.usable_bytes // count // 2
    sessions = range(1, count + 1)
    with (
        timeshare(count, here.usable_bytes // 2, here.host_bytes, quantum) as end,
        running(here, size, *(end.environment(session) for session in sessions)) as students,
    ):
        calibrated = students[0].does("work", CALIBRATION_PASSES, 0.0, 1)["seconds"]
        for session in sessions:
            end.usage(session)
        times, cells = attend(end, students, calibrated / CALIBRATION_PASSES, seconds)
        used = [end.usage(session) for session in sessions]
        right = all(student.does("check")["right"] for student in students)
    if not times:
        raise RuntimeError("no short cell ended")
    centiles = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
    held = [one["held_s"] for one in used]
    return {
        "result": "right" if right else "wrong numbers",
        "cells": cells,
        "short": len(times),
        "mean_s": round(statistics.fmean(times), 3),
        "p50_s": round(centiles[49], 3),
        "p95_s": round(centiles[94], 3),
        "p99_s": round(centiles[98], 3),
        "busy_s": round(sum(held), 1),
        "moved_gb": round(sum(one["moved_bytes"] for one in used) / 1e9, 1),
    }


def cells_of(student: int, pass_seconds: float) -> Callable[[], Cell]:
    """The same cells for each arm."""
    chance = random.Random(student)

    def draw() -> Cell:
        _, median, spread = chance.choices(KINDS, [kind[0] for kind in KINDS])[0]
        seconds = median * chance.lognormvariate(0, spread)
        passes = max(1, round(seconds / pass_seconds))
        return Cell(chance.expovariate(1 / THINK_S), passes, seconds < SHORT_S)

    return draw


def attend(end: Timeshare, students: list[Running], pass_seconds: float, seconds: float) -> tuple[list[float], int]:
    """How long short cells took, and the number of completed cells. Cells still running at the end count, too."""
    draws = [cells_of(number, pass_seconds) for number in range(len(students))]
    pending = [draw() for draw in draws]
    began = [0.0] * len(students)
    over = time.monotonic() + seconds
    # They begin one after the other within the first half of the time.
    apart = seconds / 2 / len(students)
    thinking = [(time.monotonic() + apart * number, number) for number in range(len(students))]
    times, ended, at_work = [], 0, 0
    with selectors.DefaultSelector() as answers:
        for number, student in enumerate(students):
            assert student.process.stdout
            answers.register(student.process.stdout, selectors.EVENT_READ, number)
        while at_work or (thinking and thinking[0][0] < over):
            now = time.monotonic()
            while thinking and thinking[0][0] <= min(now, over):
                _, number = heapq.heappop(thinking)
                began[number] = now
                end.started(number + 1)
                students[number].ask("work", pending[number].passes, 0.0, 1)
                at_work += 1
            until = min(thinking[0][0], over) if thinking else over
            for ready, _ in answers.select(max(0.0, until - now) if now < over else None):
                number = ready.data
                students[number].answer()
                end.ended(number + 1)
                now = time.monotonic()
                if pending[number].is_short:
                    times.append(now - began[number])
                ended, at_work = ended + 1, at_work - 1
                pending[number] = draws[number]()
                heapq.heappush(thinking, (now + pending[number].thinks_s, number))
    return times, ended


if __name__ == "__main__":
    main()
