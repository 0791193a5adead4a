"""What sharing costs in counts: driver calls and bytes moved, on a driver in host memory. No GPU is used.

The times of moves come from a model: `LINK` bytes per second in each direction, and `PINNING` bytes per second if
host memory is made and pinned during the move, as in `baton plan --policies`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from programs import against

import measuring  # isort: skip
from end_to_end.gpu_programs import gpu_program  # isort: skip
from end_to_end.timeshare import Timeshare, timeshare  # isort: skip

CARD_BYTES = 64 << 20
LINK = 50e9
PINNING = 2**30 / 0.39
BUFFER_BYTES = 4 << 20
PAIRS = 200
LAUNCHES = 6400
# Three calls for each mark, and a mark for every 64 launches.
MOST_CALLS = 0.05
ROUNDS = 10
PATIENCE_SECONDS = 60
# With a quantum, the worker's end waits long enough for programs that return memory.
QUANTUM_MS = 30
# A number in the card's file: while it is not 0, kernels of the name `held` do not end.
HELD = 488
HOST_LACKS_BYTES = 8 << 20
OUT_OF_MEMORY = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=measuring.RESULTS, help="the folder of the report")
    measuring.RESULTS = parser.parse_args().results
    rows: dict[str, dict[str, Any]] = {}
    verdict: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([gpu_program("gpu-machine"), folder, str(CARD_BYTES)], check=True)
        client = gpu_program("gpu-client")
        pairs(rows, verdict, folder, client)
        launches(rows, verdict, folder, client)
        for mebibytes in (32, 40, 56):
            hand_overs(rows, verdict, folder, client, mebibytes << 20)
        for mebibytes in (40, 56):
            first_hand_over(rows, verdict, folder, client, mebibytes << 20)
        unused_memory(rows, verdict, folder, client)
        allocation_beside_a_kernel(rows, verdict, folder, client)
        full_host(rows, verdict, folder, client)
        monitoring(rows, verdict, folder, client, gpu_program("gpu-monitor"))
    columns = dict.fromkeys(column for row in rows.values() for column in row)
    in_columns = {what: {column: row.get(column, "") for column in columns} for what, row in rows.items()}
    measuring.report("gpu-counts", in_columns, verdict)


def pairs(rows: dict[str, dict[str, Any]], verdict: dict[str, Any], folder: str, client: str) -> None:
    """Allocations and frees in stream order."""
    alone, shared = calls(folder, client, f"pairs {BUFFER_BYTES} {PAIRS}", PAIRS)
    rows["allocate and free in order, the driver's own pool"] = {"calls": alone}
    rows["allocate and free in order, in turns"] = {"calls": shared}
    verdict["calls to allocate and free in order"] = against(shared, 2 * alone, shared <= 2 * alone)


def launches(rows: dict[str, dict[str, Any]], verdict: dict[str, Any], folder: str, client: str) -> None:
    """Waits for the end, which is one more call."""
    alone, shared = calls(folder, client, f"calls-of-launches {LAUNCHES}", LAUNCHES)
    rows["a launch, alone"], rows["a launch, in turns"] = {"calls": alone}, {"calls": shared}
    extra = round(shared - alone, 3)
    verdict["more calls for a launch in turns"] = against(extra, MOST_CALLS, extra <= MOST_CALLS)


def calls(folder: str, client: str, command: str, count: int) -> list[float]:
    """Driver calls for each of `count` operations of a repeated command: alone, and with time-sharing."""
    found = []
    with timeshare(1, CARD_BYTES, CARD_BYTES) as ends:
        for extra in ({}, ends.environment(1)):
            with program(folder, client, extra) as does:
                does(command)
                found.append(int(does(command)) / count)
    return found


def hand_overs(rows: dict[str, dict[str, Any]], verdict: dict[str, Any], folder: str, client: str, each: int) -> None:
    """Two programs of this size compute alternately."""
    with (
        timeshare(2, CARD_BYTES, 8 * CARD_BYTES) as ends,
        program(folder, client, ends.environment(1)) as first,
        program(folder, client, ends.environment(2)) as second,
    ):
        names = [f"buffer-{number}" for number in range(each // BUFFER_BYTES)]
        for does in (first, second):
            for name in names:
                does(f"allocate {name} {BUFFER_BYTES}")
                does(f"set {name} 1")
        # What left before the first round is counted now.
        wait_for(ends, 1, "moved_bytes", 2 * each - CARD_BYTES)
        ends.usage(2)
        for _ in range(ROUNDS):
            for does in (first, second):
                for name in names:
                    does(f"add {name} 1")
                assert {does(f"check {name}") for name in names} == {"right"}
        moved = sum(ends.usage(session)["moved_bytes"] for session in (1, 2)) / (2 * ROUNDS)
    needed = 2 * max(0, 2 * each - CARD_BYTES)
    what = f"hand-over, each {each / CARD_BYTES:.0%} of the memory"
    rows[what] = {
        "moved_mib": round(moved / 2**20, 1),
        "whole_sessions_mib": 2 * each >> 20 if needed else 0,
        "model_ms": round(moved / LINK * 1e3, 2),
    }
    verdict[what] = against(round(moved / 2**20, 1), needed >> 20, moved <= needed, " MiB")


def first_hand_over(
    rows: dict[str, dict[str, Any]], verdict: dict[str, Any], folder: str, client: str, each: int
) -> None:
    """The first time that memory of the second of two programs leaves, with places that were made ahead and without."""
    what = f"first hand-over, each {each / CARD_BYTES:.0%} of the memory"
    for how, pins_ahead in (("places made in it", False), ("places made ahead", True)):
        with two_programs(folder, client, each, pins_ahead=pins_ahead) as (ends, first, second):
            ends.usage(2)
            for does in (first, second):
                does("add a 1")
                assert does("check a") == "right"
            used = ends.usage(2)
        moved, pinned = used["moved_bytes"], used["pinned_in_moves_bytes"]
        rows[f"{what}, {how}"] = {
            "moved_mib": moved >> 20,
            "pinned_in_it_mib": pinned >> 20,
            "model_ms": round((moved / LINK + pinned / PINNING) * 1e3, 2),
        }
        if pins_ahead:
            verdict[f"{what}, pinned in it"] = against(pinned >> 20, 0, pinned == 0, " MiB")


def unused_memory(rows: dict[str, dict[str, Any]], verdict: dict[str, Any], folder: str, client: str) -> None:
    """Another program needs the room of memory that a library holds without using it."""
    live, held, needed = 24 << 20, 16 << 20, 40 << 20
    for how, is_returned in (("kept", False), ("returned", True)):
        with (
            timeshare(2, CARD_BYTES, 8 * CARD_BYTES, QUANTUM_MS) as ends,
            program(folder, client, ends.environment(1)) as first,
            program(folder, client, ends.environment(2)) as second,
        ):
            first(f"allocate live {live}")
            first(f"allocate held {held}")
            if is_returned:
                first("free-when-asked held")
            # Gets a turn, so the worker's end knows by now what the program can free.
            first("set live 1")
            second(f"allocate a {needed}")
            second("set a 1")
            assert (first("check live"), second("check a")) == ("right", "right")
            moved = sum(ends.usage(session)["moved_bytes"] for session in (1, 2)) >> 20
        rows[f"{held >> 20} MiB of unused memory, {how}"] = {"moved_mib": moved}
    verdict["moved because of unused memory"] = against(moved, 0, moved == 0, " MiB")


def allocation_beside_a_kernel(
    rows: dict[str, dict[str, Any]], verdict: dict[str, Any], folder: str, client: str
) -> None:
    waits = []
    with timeshare(1, CARD_BYTES, CARD_BYTES) as ends:
        for how, extra in (("alone", {}), ("in turns", ends.environment(1))):
            with program(folder, client, extra) as does:
                with long_kernels(folder):
                    does("launch held 1")
                    does(f"allocate a {BUFFER_BYTES}")
                    waits.append(does("is-done") == "true")
                does("synchronize")
            rows[f"cuMemAlloc beside a long kernel, {how}"] = {"waits": in_words(waits[-1])}
    verdict["cuMemAlloc calls in turns that wait for a kernel"] = against(int(waits[1]), 0, not waits[1])


@contextlib.contextmanager
def long_kernels(folder: str) -> Iterator[None]:
    """Kernels of the name `held` end with this context, or after longer than any allocation takes on a busy machine."""
    let_go = threading.Timer(PATIENCE_SECONDS, hold, (folder, 0))
    hold(folder, 1)
    let_go.start()
    try:
        yield
    finally:
        let_go.cancel()
        hold(folder, 0)


def hold(folder: str, number: int) -> None:
    with (Path(folder) / "card").open("r+b") as card:
        card.seek(8 * HELD)
        card.write(struct.pack("<Q", number))


def full_host(rows: dict[str, dict[str, Any]], verdict: dict[str, Any], folder: str, client: str) -> None:
    """The host has no room for what would have to leave the GPU."""
    with (
        timeshare(2, CARD_BYTES, HOST_LACKS_BYTES) as ends,
        program(folder, client, ends.environment(1)) as first,
        program(folder, client, ends.environment(2)) as second,
    ):
        first(f"allocate a {40 << 20}")
        first("set a 1")
        try:
            answer = second(f"allocate a {40 << 20}")
        except RuntimeError as error:
            answer = str(error)
        assert first("check a") == "right"
        moved = sum(ends.usage(session)["moved_bytes"] for session in (1, 2)) >> 20
    is_refused = answer.endswith(f"error {OUT_OF_MEMORY}")
    rows["an allocation for which the host has no room"] = {"moved_mib": moved, "refused": in_words(is_refused)}
    verdict["moved before an allocation is refused"] = against(moved, 0, is_refused and moved == 0, " MiB")


def monitoring(
    rows: dict[str, dict[str, Any]], verdict: dict[str, Any], folder: str, client: str, monitor: str
) -> None:
    """What `nvidia-smi` in a session shows while another session has more memory."""
    with (
        timeshare(2, CARD_BYTES, CARD_BYTES) as ends,
        program(folder, client, ends.environment(1)) as first,
        program(folder, client, ends.environment(2)) as second,
    ):
        first(f"allocate a {8 << 20}")
        second(f"allocate a {40 << 20}")
        total, used, free, *processes = shown(folder, monitor, ends.environment(1))
    what = "nvidia-smi in a session with 8 MiB beside one with 40 MiB"
    rows[what] = {"total_mib": total >> 20, "used_mib": used >> 20, "processes": len(processes) // 2}
    is_own = (total, used, free, len(processes)) == (CARD_BYTES, 8 << 20, CARD_BYTES - (8 << 20), 2)
    verdict["memory that nvidia-smi in a session shows"] = against(used >> 20, 8, is_own, " MiB")


def in_words(is_true: bool) -> str:
    return "yes" if is_true else "no"


def shown(folder: str, monitor: str, extra: dict[str, str]) -> list[int]:
    output = subprocess.run(
        [monitor], env=environment(folder, extra), check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return list(map(int, output.split()))


def environment(folder: str, extra: dict[str, str]) -> dict[str, str]:
    here = {"LD_LIBRARY_PATH": folder, "BATON_TEST_GPU": str(Path(folder) / "card")}
    return dict(os.environ) | here | extra


@contextlib.contextmanager
def two_programs(folder: str, client: str, each: int, *, pins_ahead: bool) -> Iterator[tuple[Any, Any, Any]]:
    """Two programs, each of which has filled this many bytes: together more than fits.

    With `pins_ahead`, what has to move when the first one goes on has places in host memory.
    """
    with (
        timeshare(2, CARD_BYTES, 16 * CARD_BYTES, pins_ahead=pins_ahead) as ends,
        program(folder, client, ends.environment(1)) as first,
        program(folder, client, ends.environment(2)) as second,
    ):
        for does in (first, second):
            does(f"allocate a {each}")
            does("set a 1")
        if pins_ahead:
            wait_for(ends, 2, "pinned_ahead_bytes", 2 * each - CARD_BYTES)
        yield ends, first, second


def wait_for(ends: Timeshare, session: int, what: str, needed: int) -> None:
    """Until the worker's end has counted this many bytes."""
    counted, until = 0, time.monotonic() + PATIENCE_SECONDS
    while counted < needed:
        counted += ends.usage(session)[what]
        assert time.monotonic() < until, f"{what}: {counted} of {needed}"


@contextlib.contextmanager
def program(folder: str, client: str, extra: dict[str, str]) -> Iterator[Any]:
    """Yields a function that sends a command and returns the answer without its `ok`."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([client], env=environment(folder, extra), **pipes) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ok ready\n"

        def does(command: str) -> str:
            process.stdin.write(command + "\n")
            process.stdin.flush()
            answer = process.stdout.readline().strip()
            if not answer.startswith("ok"):
                raise RuntimeError(f"{command}: {answer}")
            return answer.removeprefix("ok").strip()

        yield does
        process.stdin.close()


if __name__ == "__main__":
    main()
