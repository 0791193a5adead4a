"""Frameworks with time-sharing on a real GPU: two programs at a time with more memory together than they may use."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from end_to_end.timeshare import timeshare

MAY_USE = 4 << 30
HOST = 16 << 30
PATIENCE_SECONDS = 600

# Each line is answered with whether the memory is unchanged, and how many submissions bypassed the gate according to
# a profiler. The profiler is PyTorch's, which sees what any library of the process submits.
PROGRAM = """
import ctypes
import sys

import torch
from torch.profiler import ProfilerActivity, profile

gibibytes, number = float(sys.argv[1]), float(sys.argv[2])
count = int(gibibytes * 2**30) // 4
passed = ctypes.CDLL(None).baton_gpu_submissions
passed.restype = ctypes.c_uint32
SUBMISSIONS = ("LaunchKernel", "GraphLaunch", "Memcpy", "Memset")

{library}

{work}

work()
finish()
print("ready", flush=True)
for _ in sys.stdin:
    before = passed()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        work()
        finish()
    submitted = [event for event in seen.events() if event.name.startswith("cu") and any(
        name in event.name for name in SUBMISSIONS
    )]
    assert submitted, "the profiler saw nothing"
    beside = max(0, len(submitted) - (passed() - before) % 2**32)
    print(bool(is_unchanged()), beside, flush=True)
"""

PYTORCH = """
memory = torch.full((count,), number, device="cuda")
finish = torch.cuda.synchronize

def is_unchanged():
    return (memory == number).all()
"""

CUPY = """
import cupy

memory = cupy.full(count, number, dtype=cupy.float32)
finish = cupy.cuda.Device().synchronize

def is_unchanged():
    return (memory == number).all()
"""

JAX = """
import jax
import jax.numpy as jnp

assert jax.default_backend() == "gpu"
# XLA tries variants of a program with a copy of its arguments, so each array is a small part. Its allocator asks the
# driver for sizes that are powers of two, and wastes least of them if the arrays are, too.
PARTS = count // 2**24
memory = [jnp.full(count // PARTS, number, dtype=jnp.float32) for _ in range(PARTS)]

def finish():
    (jnp.zeros(()) + 1).block_until_ready()

@jax.jit
def all_equal(values):
    return (values == number).all()

def is_unchanged():
    return all(all_equal(part) for part in memory)
"""

# The library that holds the memory, and the work that is done beside it.
WORK = {
    "eager": (
        PYTORCH,
        """
def work():
    square = torch.full((512, 512), 2.0, device="cuda")
    assert (square @ square)[0, 0].item() == 2048.0
""",
    ),
    "graph": (
        PYTORCH,
        """
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
    ),
    "loader": (
        PYTORCH,
        """
from torch.utils.data import DataLoader, TensorDataset

rows = TensorDataset(torch.arange(64.0))

def work():
    loader = DataLoader(rows, batch_size=16, num_workers=2, pin_memory=True)
    assert sum(batch.to("cuda", non_blocking=True).sum().item() for (batch,) in loader) == 2016.0
""",
    ),
    "compiled": (
        PYTORCH,
        """
@torch.compile
def twice_and_one(values):
    return values * 2 + 1

def work():
    assert twice_and_one(torch.ones(4096, device="cuda")).sum().item() == 3 * 4096.0
""",
    ),
    "triton": (
        PYTORCH,
        """
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
    ),
    "cupy": (
        CUPY,
        """
add_one = cupy.RawKernel(
    'extern "C" __global__ void add_one(float *values) { values[threadIdx.x] += 1; }', "add_one"
)

def work():
    square = cupy.full((512, 512), 2.0, dtype=cupy.float32)
    assert float((square @ square)[0, 0]) == 2048.0
    values = cupy.ones(256, dtype=cupy.float32)
    add_one((1,), (256,), (values,))
    assert float(values.sum()) == 512.0
""",
    ),
    "jax": (
        JAX,
        """
@jax.jit
def twice_and_one(values):
    return values * 2 + 1

def work():
    square = jnp.full((512, 512), 2.0)
    assert float((square @ square)[0, 0]) == 2048.0
    assert float(twice_and_one(jnp.ones(4096)).sum()) == 3 * 4096.0
""",
    ),
}
# Variables that a worker sets for its sessions.
THRIFT = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


class Program:
    """A program, whose first answer is that it is ready."""

    def __init__(self, script: Path, gibibytes: float, number: int, environment: dict[str, str]) -> None:
        command = [sys.executable, script, str(gibibytes), str(number)]
        self.process = subprocess.Popen(
            command, env=dict(os.environ) | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._limit = threading.Timer(PATIENCE_SECONDS, self.process.kill)
        self._limit.start()

    def go(self) -> str:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> str:
        """The next answer; empty if it has ended."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self._limit.cancel()
        self.process.kill()
        self.process.communicate()


def take_turns(folder: Path, name: str, gibibytes: float, environment: dict[str, str]) -> int:
    """Two programs of this size each, which may use 4 GiB together. Returns how often memory returned to the GPU.

    Raises AssertionError if one finds its memory changed, or if the profiler saw submissions that bypassed the gate.
    """
    script = folder / "program.py"
    library, work = WORK[name]
    script.write_text(PROGRAM.replace("{library}", library).replace("{work}", work))
    with timeshare(2, MAY_USE, HOST) as end:
        programs: list[Program] = []
        try:
            for session in (1, 2):
                programs.append(Program(script, gibibytes, session, end.environment(session) | THRIFT | environment))
            assert [program.answer() for program in programs] == ["ready", "ready"]
            for program in programs * 3:
                said = program.go()
                assert said == "True 0", f"memory as it was, and submissions past the gate: {said or 'it ended'}"
            return sum(end.usage(session)["swaps"] for session in (1, 2))
        finally:
            for program in programs:
                program.end()
