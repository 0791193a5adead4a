"""Two programs on one GPU, side by side and with time-sharing: `sharing.py small_50`.

small = 0.45 and big = 0.956 of the available memory; 50 and 90 = the percentage of their time that they spend on the
GPU when alone: the programs of nvshare's thesis, scaled.

Arms: alone without and with the interposer; two at once as the driver shares the GPU and under MPS (small only); two
under nvshare, whose libnvshare.so, nvshare-scheduler and nvsharectl are in `--nvshare FOLDER`; two in turns with quanta
of 20 and 5 seconds; and in the order in which a worker lets cells compute. Each program checks its memory. If an arm
fails, that is reported and the next one runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from programs import Card, Running, against, arguments, card, running, say

from end_to_end.timeshare import Timeshare, timeshare  # isort: skip

# name: share of the memory, share of the time on the GPU
PROGRAMS = {"small_50": (0.45, 0.5), "small_90": (0.45, 0.9), "big_50": (0.956, 0.5), "big_90": (0.956, 0.9)}
QUANTA_S = (20, 5)
CALIBRATION_PASSES = 20
# Two programs in turns compared with one after the other; one alone in turns compared with alone. In one phase, 0.75 is
# the least possible for programs that spend half of their time on the GPU: it is used by one after the other.
TARGETS = {
    ("small_50", "in turns, as cells"): 0.77,
    ("big_50", "in turns of 20 s"): 0.79,
    ("big_50", "in turns of 5 s"): 0.90,
    ("big_90", "in turns of 20 s"): 1.02,
    ("big_90", "in turns of 5 s"): 1.20,
}
ALONE_TARGET = 1.01
MPS = "nvidia-cuda-mps-control"
NVSHARE = ("libnvshare.so", "nvshare-scheduler", "nvsharectl")
NVSHARE_SOCKET = Path("/var/run/nvshare/scheduler.sock")
START_SECONDS = 20


class NotRun(Exception):
    """The reason that an arm was not run."""


class Bench:
    def __init__(self, name: str, here: Card, options: argparse.Namespace) -> None:
        self.name, self.card, self.options = name, here, options
        part, self.share = PROGRAMS[name]
        self.size = int(part * here.usable_bytes)
        self.rows: dict[str, dict[str, Any]] = {}
        self.verdict: dict[str, str] = {}
        self.alone_seconds = 0.0
        self.work: tuple[object, ...] = ()

    def run(self) -> None:
        self.arm("alone", self.alone)
        if not self.alone_seconds:
            return
        self.arm("alone in turns", lambda: self.in_turns(1, None))
        if self.name.startswith("small"):
            self.arm("two as the driver shares", lambda: self.run_programs({}, {}))
            self.arm("two under MPS", self.under_mps)
        for quantum in QUANTA_S:
            self.arm(f"two under nvshare, {quantum} s", lambda quantum=quantum: self.under_nvshare(quantum))
        for quantum in QUANTA_S:
            self.arm(f"in turns of {quantum} s", lambda quantum=quantum: self.in_turns(2, quantum))
        self.arm("in turns, as cells", lambda: self.in_turns(2, None))

    def arm(self, arm: str, measure: Callable[[], dict[str, Any]]) -> None:
        what = f"{self.name}, {arm}"
        try:
            row = measure()
        except NotRun as reason:
            row = {"result": f"not run: {reason}"}
        except Exception as error:  # after any error, the other arms still run
            row = {"result": f"failed: {error}"}
        else:
            serial = self.alone_seconds * (1 if arm.startswith("alone") else 2)
            row["ratio"] = round(row["seconds"] / serial, 3)
            target = ALONE_TARGET if arm == "alone in turns" else TARGETS.get((self.name, arm))
            if target:
                is_met = row["ratio"] <= target and row["result"] == "right"
                self.verdict[what] = against(row["ratio"], target, is_met)
        self.rows[what] = row
        say(self.rows, self.verdict)

    # ---- arms

    def alone(self) -> dict[str, Any]:
        with running(self.card, self.size, {}) as (program,):
            pass_seconds = program.does("work", CALIBRATION_PASSES, 0.0, 1)["seconds"] / CALIBRATION_PASSES
        phases, seconds = self.options.phases, self.options.seconds
        passes = max(phases, round(self.share * seconds / pass_seconds))
        self.work = (passes, float((1 - self.share) * seconds), phases)
        row = self.run_programs({})
        self.alone_seconds = row["seconds"]
        return row

    def in_turns(self, count: int, quantum: int | None) -> dict[str, Any]:
        with timeshare(count, self.card.usable_bytes, self.card.host_bytes, quantum and 1000 * quantum) as end:
            sessions = range(1, count + 1)
            row = self.run_programs(*(end.environment(session) for session in sessions))
            return row | movement(end, sessions)

    def under_mps(self) -> dict[str, Any]:
        control = shutil.which(MPS)
        if not control:
            raise NotRun(f"no {MPS} on PATH")
        with tempfile.TemporaryDirectory() as folder:
            places = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
            server = self.card.environment | places
            subprocess.run([control, "-d"], env=server, check=True, timeout=START_SECONDS)
            try:
                return self.run_programs(places, places)
            finally:
                subprocess.run([control], input="quit -t 5\n", text=True, env=server, timeout=START_SECONDS)

    def under_nvshare(self, quantum: int) -> dict[str, Any]:
        folder = self.options.nvshare
        if not folder:
            raise NotRun("no nvshare: name its folder with --nvshare")
        missing = [name for name in NVSHARE if not (folder / name).is_file()]
        if missing:
            raise NotRun(f"no nvshare: {', '.join(missing)} not in {folder}")
        with nvshare_scheduler(folder, quantum):
            library = {"LD_PRELOAD": str(folder / NVSHARE[0])}
            return self.run_programs(library, library)

    def run_programs(self, *extra: dict[str, str]) -> dict[str, Any]:
        """How long the last of them took, and whether all found their data unchanged."""
        with running(self.card, self.size, *extra) as programs:
            ask_all(programs, "work", *self.work)
            seconds = max(program.answer()["seconds"] for program in programs)
            ask_all(programs, "check")
            right = [program.answer()["right"] for program in programs]
        return {"result": "right" if all(right) else "wrong numbers", "seconds": round(seconds, 2)}


def ask_all(programs: list[Running], command: str, *words: object) -> None:
    for program in programs:
        program.ask(command, *words)


def movement(end: Timeshare, sessions: range) -> dict[str, Any]:
    used = [end.usage(session) for session in sessions]
    if not all(one["held_s"] for one in used):
        raise RuntimeError("the programs took no turns")
    swaps, moved, seconds = (sum(one[key] for one in used) for key in ("swaps", "moved_bytes", "moving_s"))
    rate = round(moved / seconds / 1e9, 1) if seconds else 0
    return {"swaps": swaps, "moved_gb": round(moved / 1e9, 1), "gb_per_s": rate}


@contextmanager
def nvshare_scheduler(folder: Path, quantum: int) -> Iterator[None]:
    with ExitStack() as ending:
        scheduler = subprocess.Popen([folder / NVSHARE[1]], stdout=subprocess.DEVNULL)
        ending.callback(scheduler.wait)
        ending.callback(scheduler.terminate)
        until = time.monotonic() + START_SECONDS
        while not NVSHARE_SOCKET.exists():
            if scheduler.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"nvshare-scheduler does not listen at {NVSHARE_SOCKET}")
            os.sched_yield()
        subprocess.run([folder / NVSHARE[2], "-T", str(quantum)], check=True, timeout=START_SECONDS)
        yield


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--phases", type=int, default=1, help="1: the GPU and then the processor; 20: a notebook")
    parser.add_argument("--nvshare", type=Path, help="the folder of nvshare's programs")
    options = parser.parse_args()
    Bench(options.program, card(options), options).run()


if __name__ == "__main__":
    main()
