"""What the programs with real CUDA libraries share. Each runs one part, named on the command line.

Kernels compute nothing on the driver in host memory; memory, copies, sets, streams, events and graphs are real. So
each part fills memory with copies, and checks that it is unchanged. Every line that a program prints is `right`, or
says what is wrong.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

MIB = 1 << 20

# A part gets a number of MiB, a number of rounds and a seed.
Part = Callable[[int, int, int], None]


def say(line: str) -> None:
    print(line, flush=True)


def tell(is_right: object, otherwise: str) -> None:
    say("right" if is_right else otherwise)


def go() -> None:
    """Waits until the test lets the program go on."""
    sys.stdin.readline()


def sizes(mebibytes: int) -> Iterator[int]:
    """Sizes of small, medium and large arrays of 8-byte numbers, together this many MiB."""
    count = mebibytes * MIB // 8
    while count > 0:
        for size in (100, 60_000, 700_000, 2_000_000):
            yield min(size, count)
            count -= size
            if count <= 0:
                return


def numbers(count: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(1 << 62, size=count)


def arrays(mebibytes: int, seed: int) -> list[Any]:
    return [numbers(count, seed + place) for place, count in enumerate(sizes(mebibytes))]


def check(left: list[Any], found: list[Any]) -> None:
    wrong = [
        place for place, (one, other) in enumerate(zip(left, found, strict=True)) if not np.array_equal(one, other)
    ]
    tell(not wrong, f"wrong arrays: {wrong}")


def end_cell() -> asyncio.AbstractEventLoop:
    """Returns the loop in which a session waits between cells, and returns memory that a library holds when it is asked
    to. It ends at the test's next line.
    """
    from baton_shim.session.gpu_cache import GpuCache

    loop = asyncio.new_event_loop()
    GpuCache().end_cell(loop)
    loop.add_reader(sys.stdin, loop.stop)
    return loop


def submissions() -> int:
    """How many submissions of this process have passed the gate."""
    count: int = ctypes.CDLL(None).baton_gpu_submissions() & 0xFFFF_FFFF
    return count


def run(*parts: Part) -> None:
    name, *rest = sys.argv[1:]
    say("ready")
    {part.__name__: part for part in parts}[name](*map(int, rest))
    say("done")
