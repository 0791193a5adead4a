"""Shared code of this bench: the GPU, and programs on it that answer in time or are ended."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
sys.path[:0] = [str(FOLDER.parent), str(ROOT / "tests")]

from measuring import field_bytes  # noqa: E402

# For one answer of one program.
PATIENCE_SECONDS = 300


class Card(NamedTuple):
    """What programs may use."""

    environment: dict[str, str]
    usable_bytes: int
    host_bytes: int


def arguments(about: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long a program takes alone")
    parser.add_argument("--gib", type=float, help="how much of the GPU's memory may be used")
    parser.add_argument("--machine", type=Path, help="the folder of a driver in host memory, whose times mean nothing")
    return parser


def environment(options: argparse.Namespace) -> dict[str, str]:
    found = dict(os.environ) | {"PYTHONPATH": str(ROOT / ".venv/cuda")}
    if options.machine:
        found |= {"LD_LIBRARY_PATH": str(options.machine), "BATON_TEST_GPU": str(options.machine / "card")}
    return found


def card(options: argparse.Namespace) -> Card:
    around = environment(options)
    asked = subprocess.run(
        [sys.executable, FOLDER / "probe.py", "--parts", "device"], env=around, stdout=subprocess.PIPE, text=True
    )
    device = json.loads(asked.stdout.splitlines()[-1]) if asked.stdout else {"error": "the driver does not start"}
    if "error" in device:
        raise SystemExit(f"The GPU cannot be used: {device['error']}")
    # Memory that has left the GPU is in the host's memory.
    host = int(0.8 * field_bytes("/proc/meminfo", "MemAvailable"))
    usable = min(int(0.9 * (device["free_mib"] << 20)), host // 2, int((options.gib or 1024) * 2**30))
    return Card(around, usable >> 24 << 24, host)


class Running:
    """A `program.py` process. If it does not answer in time, it is ended, and an error is raised."""

    def __init__(self, card: Card, size: int, extra: dict[str, str]) -> None:
        command = [sys.executable, FOLDER / "program.py", str(size)]
        self.process = subprocess.Popen(
            command, env=card.environment | extra, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            self.answer()
        except BaseException:
            self.end()
            raise

    def ask(self, command: str, *words: object) -> None:
        assert self.process.stdin
        self.process.stdin.write(" ".join(map(str, (command, *words))) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        limit = threading.Timer(PATIENCE_SECONDS, self.process.kill)
        limit.start()
        assert self.process.stdout
        line = self.process.stdout.readline()
        limit.cancel()
        if not line:
            raise RuntimeError(f"a program ended with {self.process.wait()}")
        said: dict[str, Any] = json.loads(line)
        return said

    def does(self, command: str, *words: object) -> dict[str, Any]:
        self.ask(command, *words)
        return self.answer()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def running(card: Card, size: int, *extra: dict[str, str]) -> Iterator[list[Running]]:
    """One program for each environment."""
    started: list[Running] = []
    try:
        for one in extra:
            started.append(Running(card, size, one))
        yield started
    finally:
        for program in started:
            program.end()


def say(rows: dict[str, dict[str, Any]], verdict: dict[str, str]) -> None:
    """Prints what a part has found so far; the last line counts."""
    print(json.dumps({"rows": rows, "verdict": verdict}), flush=True)


def against(found: float, target: float, is_met: bool, unit: str = "") -> str:
    return f"{found}{unit} (target: {target}{unit}; {'met' if is_met else 'not met'})"
