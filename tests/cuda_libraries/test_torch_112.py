"""PyTorch 1.12.1 in turns on a driver in host memory: programs with more memory together than there is.

Its CUDA runtime is the last that starts on a driver which is not NVIDIA's. The worker's end moves some of a program's
memory whenever the program rests, needed or not; what, and how much, follows from a seed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = [pytest.mark.cuda_libraries, pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent.parent
PYTHON = ROOT / ".venv/cuda-libraries/bin/python"
PROGRAM = Path(__file__).with_name("program.py")
# The tests' own home has no compiler.
ENVIRONMENT = dict(os.environ)

CARD_MIB = 384
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
def programs() -> tuple[str, str]:
    """What makes machines, and a worker's end."""
    return built("--bin", "gpu-machine"), built("--example", "turns")


class Machine:
    """A card with a worker's end, and programs that take turns on it."""

    def __init__(self, folder: Path, programs: tuple[str, str]) -> None:
        make, turns = programs
        self.folder = folder
        subprocess.run([make, folder, str(CARD_MIB << 20)], check=True)
        words = (folder, SESSIONS, CARD_MIB << 20, HOST_BYTES, QUANTUM_MS, SEED)
        self.turns = subprocess.Popen(
            [turns, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        assert self.turns.stdout
        self.interposer = self.turns.stdout.readline().strip()
        self.running: list[Program] = []

    def start(self, part: str, mebibytes: int, rounds: int) -> Program:
        token = len(self.running) + 1
        environment = ENVIRONMENT | {
            "LD_PRELOAD": self.interposer,
            "LD_LIBRARY_PATH": str(self.folder),
            "BATON_TEST_GPU": str(self.folder / "card"),
            "BATON_GPU_SOCKET": str(self.folder / "gpu"),
            "BATON_GPU_TOKEN": f"{token:x}",
        }
        words = map(str, (PYTHON, PROGRAM, part, mebibytes, rounds, 10_000 * token))
        process = subprocess.Popen(
            [*words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=self.folder
        )
        program = Program(process, rounds)
        self.running.append(program)
        return program

    def usage(self, token: int) -> dict[str, Any]:
        assert self.turns.stdin
        assert self.turns.stdout
        self.turns.stdin.write(f"usage {token}\n")
        self.turns.stdin.flush()
        found: dict[str, Any] = json.loads(self.turns.stdout.readline())
        return found

    def end(self) -> None:
        for program in self.running:
            program.process.kill()
        self.turns.kill()
        for process in (*(program.process for program in self.running), self.turns):
            process.wait()


class Program(NamedTuple):
    process: subprocess.Popen[str]
    rounds: int

    def go(self) -> None:
        """Lets it do all its rounds."""
        assert self.process.stdin
        self.process.stdin.write("go\n" * self.rounds)
        self.process.stdin.close()

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def finds(self) -> list[str]:
        """What it says until it is done."""
        assert self.process.stdout
        lines = [line.strip() for line in self.process.stdout]
        assert self.process.wait(PATIENCE_SECONDS) == 0
        assert lines.pop() == "done", lines
        return lines


@pytest.fixture
def machine(tmp_path: Path, programs: tuple[str, str]) -> Iterator[Machine]:
    assert PYTHON.exists(), "make test-cuda-libraries installs PyTorch 1.12"
    print(f"BATON_TEST_SEED={SEED}")
    machine = Machine(tmp_path, programs)
    yield machine
    machine.end()


def check(programs: list[Program]) -> None:
    for program in programs:
        program.go()
    for program in programs:
        found = program.finds()
        assert found[0] == "ready"
        assert set(found[1:]) == {"right"}, found


@pytest.mark.parametrize("part", ["memory", "threads", "loader", "graphs", "cache"])
def test_two_programs_with_more_memory_than_fits_find_theirs_as_they_left_it(machine: Machine, part: str) -> None:
    check([machine.start(part, 220, 4), machine.start("memory", 220, 4)])
    assert machine.usage(1)["moved_bytes"] > 0
    assert machine.usage(2)["moved_bytes"] > 0


def test_four_programs_at_once(machine: Machine) -> None:
    check([machine.start(part, 130, 3) for part in ("memory", "threads", "graphs", "cache")])


def test_the_library_s_own_functions_pass_the_gate(machine: Machine) -> None:
    check([machine.start("calls", 0, 3)])


def test_a_program_that_is_killed_harms_no_other(machine: Machine) -> None:
    other = machine.start("memory", 220, 6)
    other.go()
    random_moment = random.Random(SEED)
    for _ in range(2):
        killed = machine.start("threads", 200, 50)
        assert killed.line() == "ready"
        held, enough = 0.0, random_moment.random() / 5
        while held < enough:  # each answer is of the time since the last
            held += machine.usage(len(machine.running))["held_s"]
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
    found = other.finds()
    assert set(found[1:]) == {"right"}, found
