"""With a real NVIDIA GPU: frameworks in turns, two programs at a time that together have more than they may use."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from end_to_end.turns import turns

pytestmark = pytest.mark.gpu

MAY_USE = 4 << 30
HOST = 16 << 30
PATIENCE_SECONDS = 600

# Each line is answered: whether the memory is as it was left, and how many submissions a profiler saw that did not pass
# the gate.
PROGRAM = """
import ctypes
import sys

import torch
from torch.profiler import ProfilerActivity, profile

gibibytes, number = float(sys.argv[1]), float(sys.argv[2])
passed = ctypes.CDLL(None).baton_gpu_submissions
passed.restype = ctypes.c_uint32
SUBMISSIONS = ("LaunchKernel", "GraphLaunch", "Memcpy", "Memset")

{work}

memory = torch.full((int(gibibytes * 2**30) // 4,), number, device="cuda")
work()
torch.cuda.synchronize()
print("ready", flush=True)
for _ in sys.stdin:
    before = passed()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    submitted = [event for event in seen.events() if event.name.startswith("cu") and any(
        name in event.name for name in SUBMISSIONS
    )]
    assert submitted, "the profiler saw nothing"
    beside = max(0, len(submitted) - (passed() - before) % 2**32)
    print(bool((memory == number).all()), beside, flush=True)
"""

WORK = {
    "eager": """
def work():
    square = torch.full((512, 512), 2.0, device="cuda")
    assert (square @ square)[0, 0].item() == 2048.0
""",
    "graph": """
sums = torch.zeros(8, device="cuda")
aside = torch.cuda.Stream()
aside.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(aside):
    sums.add_(1)
torch.cuda.current_stream().wait_stream(aside)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    sums.add_(1)

def work():
    sums.zero_()
    graph.replay()
    assert sums.sum().item() == 8.0
""",
    "compiled": """
@torch.compile
def twice_and_one(values):
    return values * 2 + 1

def work():
    assert twice_and_one(torch.ones(4096, device="cuda")).sum().item() == 3 * 4096.0
""",
    "triton": """
import triton
import triton.language as tl

@triton.jit
def add_one(values, size: tl.constexpr):
    place = tl.arange(0, size)
    tl.store(values + place, tl.load(values + place) + 1)

def work():
    values = torch.ones(1024, device="cuda")
    add_one[(1,)](values, 1024)
    assert values.sum().item() == 2048.0
""",
}
EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


class Program:
    def __init__(self, script: Path, gibibytes: float, number: int, environment: dict[str, str]) -> None:
        command = [sys.executable, script, str(gibibytes), str(number)]
        self.process = subprocess.Popen(
            command, env=dict(os.environ) | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._limit = threading.Timer(PATIENCE_SECONDS, self.process.kill)
        self._limit.start()
        assert self.answer() == "ready"

    def go(self) -> str:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> str:
        """Empty when it ended."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self._limit.cancel()
        self.process.kill()
        self.process.communicate()


def check(script: Path, work: str, gibibytes: float, environment: dict[str, str]) -> int:
    """How often memory came back to the GPU."""
    script.write_text(PROGRAM.replace("{work}", work))
    with turns(2, MAY_USE, HOST) as end:
        programs: list[Program] = []
        try:
            for session in (1, 2):
                programs.append(Program(script, gibibytes, session, end.environment(session) | environment))
            for program in programs * 3:
                assert program.go() == "True 0"
            return sum(end.usage(session)["swaps"] for session in (1, 2))
        finally:
            for program in programs:
                program.end()


@pytest.mark.parametrize("work", WORK)
def test_pytorch_finds_its_memory_as_it_left_it_and_nothing_passes_the_gate(work: str, tmp_path: Path) -> None:
    assert check(tmp_path / "program.py", WORK[work], 2.5, {}) >= 4


def test_memory_that_pytorch_maps_itself_stays_on_the_gpu(tmp_path: Path) -> None:
    assert check(tmp_path / "program.py", WORK["eager"], 1, EXPANDABLE) == 0
