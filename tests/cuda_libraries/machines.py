"""Machines without a GPU, and programs with real CUDA libraries that time-share their card."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from end_to_end.timeshare import Timeshare, timeshare

ROOT = Path(__file__).parent.parent.parent
VENV = ROOT / ".venv/cuda-libraries"
PYTHON = VENV / "bin/python"
# The tests' own home folder has no compiler.
ENVIRONMENT = dict(os.environ)

CARD_MIB = 160
HOST_BYTES = 8 << 30
QUANTUM_MS = 30
SESSIONS = 7
PATIENCE_SECONDS = 300
SEED = int(os.environ.get("BATON_TEST_SEED", random.randrange(1 << 32)))

# CuPy is linked to these libraries of CUDA 10.2. PyTorch's wheel contains the first three under other names. Functions
# of the others are never called, so a library without functions stands for them.
CUDA_10 = {
    "libcudart.so.10.2": "libcudart-*.so.*",
    "libcublas.so.10": "libcublas.so.*",
    "libnvrtc.so.10.2": "libnvrtc-*.so.*",
} | {f"lib{name}.so.10": "libtorch_global_deps.so" for name in ("cufft", "curand", "cusolver", "cusparse")}


class Machine:
    """A card, and programs that time-share it."""

    def __init__(self, folder: Path, ends: Timeshare) -> None:
        self.folder = folder
        self.ends = ends
        self.running: list[Program] = []

        (self.torch,) = VENV.glob("lib/*/site-packages/torch/lib")
        for name, pattern in CUDA_10.items():
            (library,) = self.torch.glob(pattern)
            (folder / name).symlink_to(library)

    def start(self, library: str, part: str, mebibytes: int, rounds: int) -> Program:
        """Starts a part of the program `with_LIBRARY.py`."""
        token = len(self.running) + 1
        environment = ENVIRONMENT | self.ends.environment(token)
        environment |= {
            "LD_LIBRARY_PATH": f"{self.folder}:{self.torch}",
            "BATON_TEST_GPU": str(self.folder / "card"),
            "PYTHONPATH": str(ROOT / "python-shim"),
            "CUPY_CACHE_IN_MEMORY": "1",
        }
        program = Path(__file__).with_name(f"with_{library}.py")
        words = map(str, (PYTHON, program, part, mebibytes, rounds, 10_000 * token))
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

    def go(self, rounds: int) -> None:
        """Lets the program run this many of its rounds."""
        assert self.process.stdin
        self.process.stdin.write("go\n" * rounds)
        self.process.stdin.flush()

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
    assert PYTHON.exists(), "make test-cuda-libraries installs the libraries"
    subprocess.run([make, folder, str(CARD_MIB << 20)], check=True)
    with timeshare(SESSIONS, CARD_MIB << 20, HOST_BYTES, QUANTUM_MS, seed) as ends:
        machine = Machine(folder, ends)
        yield machine
        machine.end()


def check(programs: list[Program]) -> None:
    for program in programs:
        program.go(program.rounds)
    for program in programs:
        found = program.finds()
        assert found[0] == "ready"
        assert set(found[1:]) == {"right"}, found
