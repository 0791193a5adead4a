"""What sharing costs in time on a driver in host memory, next to a baseline that is measured in turns with it.

No GPU is used: copies take as long as copies in host memory.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from counts import BUFFER_BYTES, CARD_BYTES, QUANTUM_MS, program, two_programs

import measuring  # isort: skip
from end_to_end.gpu_programs import gpu_program  # isort: skip
from end_to_end.timeshare import timeshare  # isort: skip

PAIRS = 200
BESIDE = "cuMemAlloc beside a long kernel"
LONG_KERNEL = "sleep_500ms"
# Each of two programs has this much, so a part of it moves.
EACH_BYTES = CARD_BYTES * 5 // 8

Does = Callable[[str], str]
# Returns milliseconds.
Measures = Callable[[], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=measuring.RESULTS, help="the folder of the report")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    measuring.RESULTS = arguments.results
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        subprocess.run([gpu_program("gpu-machine"), folder, str(CARD_BYTES)], check=True)
        client = gpu_program("gpu-client")
        ends = stack.enter_context(timeshare(1, CARD_BYTES, CARD_BYTES))
        alone, shared = (stack.enter_context(program(folder, client, one)) for one in ({}, ends.environment(1)))
        sides = {"the driver itself": alone, "in turns": shared}
        for what, measure in ((f"{PAIRS} pairs of allocate and free in order", pairs), (BESIDE, beside)):
            compare(rows, what, {how: partial(measure, does) for how, does in sides.items()}, arguments.rounds)
        for what, measure, one, other in (
            ("room where another session holds unused memory", unused_memory, "kept", "returned"),
            ("first hand-over", first_hand_over, "places made in it", "places made ahead"),
        ):
            both = {one: partial(measure, folder, client, False), other: partial(measure, folder, client, True)}
            compare(rows, what, both, arguments.rounds)
    measuring.report("gpu-times", rows, {})


def compare(rows: dict[str, dict[str, Any]], what: str, sides: dict[str, Measures], rounds: int) -> None:
    """Measures the sides in turns. Each row also has the median of the rounds' ratios to the first side."""
    taken = [{how: measure() for how, measure in sides.items()} for _ in range(rounds)]
    baseline = next(iter(sides))
    for how in sides:
        times = [one[how] for one in taken]
        ratio = statistics.median(one[how] / one[baseline] for one in taken)
        rows[f"{what}, {how}"] = measuring.summary(times) | {"of_the_first": round(ratio, 2)}


def pairs(does: Does) -> float:
    return measuring.milliseconds(lambda: does(f"pairs {BUFFER_BYTES} {PAIRS}"))


def beside(does: Does) -> float:
    does(f"launch {LONG_KERNEL} 1")
    taken = measuring.milliseconds(lambda: does(f"allocate a {BUFFER_BYTES}"))
    does("synchronize")
    does("free a")
    return taken


def unused_memory(folder: str, client: str, returns: bool) -> float:
    """A program needs the room of memory that a library in another session holds."""
    with (
        timeshare(2, CARD_BYTES, 8 * CARD_BYTES, QUANTUM_MS) as ends,
        program(folder, client, ends.environment(1)) as first,
        program(folder, client, ends.environment(2)) as second,
    ):
        first(f"allocate held {EACH_BYTES}")
        first("set held 1")
        if returns:
            first("free-when-asked held")

        def needs_room() -> None:
            second(f"allocate a {EACH_BYTES}")
            second("set a 1")

        return measuring.milliseconds(needs_room)


def first_hand_over(folder: str, client: str, pins_ahead: bool) -> float:
    """The first time that memory of the second of two programs leaves."""
    with two_programs(folder, client, EACH_BYTES, pins_ahead=pins_ahead) as (_, first, _):

        def computes() -> None:
            first("add a 1")
            assert first("check a") == "right"

        return measuring.milliseconds(computes)


if __name__ == "__main__":
    main()
