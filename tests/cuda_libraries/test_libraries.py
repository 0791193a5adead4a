"""PyTorch 1.12.1 with time-sharing on a driver in host memory: programs with more memory together than there is.

Its CUDA runtime is the last one that starts on a driver that is not NVIDIA's. The worker's end moves some of a
program's memory whenever the program pauses, needed or not. A seed decides which memory, and how much. Between moves,
host memory is pinned ahead for all of it, and some is given back.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from end_to_end.timeshare import BUILT, Timeshare, timeshare

pytestmark = [pytest.mark.cuda_libraries, pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent.parent
PYTHON = ROOT / ".venv/cuda-libraries/bin/python"
PROGRAM = Path(__file__).with_name("program.py")
# The tests' own home folder has no compiler.
ENVIRONMENT = dict(os.environ)

CARD_MIB = 160
HOST_BYTES = 8 << 30
QUANTUM_MS = 30
SESSIONS = 4
PATIENCE_SECONDS = 300
SEED = int(os.environ.get("BATON_TEST_SEED", random.randrange(1 << 32)))


def built(kind: str, name: str) -> str:
    command = ["cargo", "build", "--quiet", "--locked", "--message-format=json", "-p", "baton-gpu-tests", kind, name]
    lines = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=True, stdout=subprocess.PIPE, text=True).stdout
    (program,) = filter(None, (json.loads(line).get("executable") for line in lines.splitlines()))
    return str(program)


@pytest.fixture(scope="module")
def make() -> Iterator[str]:
    """The program that creates machines. The worker's end is built, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BUILT, built("--example", "timeshare"))
        yield built("--bin", "gpu-machine")


class Machine:
    """A card, and programs that time-share it."""

    def __init__(self, folder: Path, ends: Timeshare) -> None:
        self.folder = folder
        self.ends = ends
        self.running: list[Program] = []

    def start(self, part: str, mebibytes: int, rounds: int) -> Program:
        token = len(self.running) + 1
        environment = ENVIRONMENT | self.ends.environment(token)
        environment |= {"LD_LIBRARY_PATH": str(self.folder), "BATON_TEST_GPU": str(self.folder / "card")}
        environment |= {"PYTHONPATH": str(ROOT / "python-shim")}
        words = map(str, (PYTHON, PROGRAM, part, mebibytes, rounds, 10_000 * token))
        process = subprocess.Popen(
            [*words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=self.folder
        )
        program = Program(process, rounds)
        self.running.append(program)
        return program

    def end(self) -> None:
        for program in self.running:
            with program.process as process:
                process.kill()


class Program(NamedTuple):
    process: subprocess.Popen[str]
    rounds: int

    def go(self) -> None:
        """Lets the program run all its rounds."""
        assert self.process.stdin
        self.process.stdin.write("go\n" * self.rounds)
        self.process.stdin.close()

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def finds(self) -> list[str]:
        """The program's output until it ends."""
        assert self.process.stdout
        lines = [line.strip() for line in self.process.stdout]
        assert self.process.wait(PATIENCE_SECONDS) == 0
        assert lines.pop() == "done", lines
        return lines


@contextlib.contextmanager
def machine_with(folder: Path, make: str, seed: int | None) -> Iterator[Machine]:
    assert PYTHON.exists(), "make test-cuda-libraries installs PyTorch 1.12"
    subprocess.run([make, folder, str(CARD_MIB << 20)], check=True)
    with timeshare(SESSIONS, CARD_MIB << 20, HOST_BYTES, QUANTUM_MS, seed) as ends:
        machine = Machine(folder, ends)
        yield machine
        machine.end()


@pytest.fixture
def machine(tmp_path: Path, make: str) -> Iterator[Machine]:
    """Memory moves at every opportunity."""
    print(f"BATON_TEST_SEED={SEED}")
    with machine_with(tmp_path, make, SEED) as machine:
        yield machine


@pytest.fixture
def calm_machine(tmp_path: Path, make: str) -> Iterator[Machine]:
    """Memory moves only when others need room."""
    with machine_with(tmp_path, make, None) as machine:
        yield machine


def check(programs: list[Program]) -> None:
    for program in programs:
        program.go()
    for program in programs:
        found = program.finds()
        assert found[0] == "ready"
        assert set(found[1:]) == {"right"}, found


@pytest.mark.parametrize("part", ["memory", "threads", "loader", "graphs", "cache"])
def test_two_programs_with_more_memory_than_fits_find_theirs_as_they_left_it(machine: Machine, part: str) -> None:
    check([machine.start(part, 90, 3), machine.start("memory", 90, 3)])
    assert machine.ends.usage(1)["moved_bytes"] > 0
    assert machine.ends.usage(2)["moved_bytes"] > 0


def test_four_programs_at_once(machine: Machine) -> None:
    check([machine.start(part, 50, 2) for part in ("memory", "threads", "graphs", "cache")])


def test_the_library_s_own_functions_pass_the_gate(machine: Machine) -> None:
    check([machine.start("calls", 0, 3)])


def test_a_program_that_is_killed_harms_no_other(machine: Machine) -> None:
    other = machine.start("memory", 90, 6)
    other.go()
    random_moment = random.Random(SEED)
    for _ in range(2):
        killed = machine.start("threads", 80, 50)
        assert killed.line() == "ready"
        held, enough = 0.0, random_moment.random() / 5
        while held < enough:  # each answer covers the time since the last one
            held += machine.ends.usage(len(machine.running))["held_s"]
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
    found = other.finds()
    assert set(found[1:]) == {"right"}, found


def test_what_the_library_holds_without_using_it_does_not_move(calm_machine: Machine) -> None:
    machine = calm_machine
    holding = machine.start("trims", 80, 1)
    assert [holding.line() for _ in range(3)] == ["ready", "right", "right"]
    check([machine.start("memory", 120, 1)])
    holding.go()
    assert holding.finds() == ["right"]
    assert [machine.ends.usage(token)["moved_bytes"] for token in (1, 2)] == [0, 0]
