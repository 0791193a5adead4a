"""A program on the GPU that runs the commands that it reads: `program.py BYTES`.

It holds BYTES in a few buffers. A pass adds one to each number in them, so their values are known at any time. Each
line on standard input is a command; each line on standard output is its answer, as JSON; the first one describes the
start.

        work PASSES CPU_SECONDS PHASES    passes, and seconds of processor time, spread over phases
        touch                             one short kernel, until its end
        launches COUNT                    what an empty kernel costs: to submit, and until its end
        copies                            the speed of the link, with pinned memory
        check                             whether every number has its expected value

It needs only the driver, through NVIDIA's bindings. It runs the same with and without the interposer.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cuda.bindings import driver

BUFFERS = 8
WORD = 8
BLOCKS, THREADS = 1024, 256
# The part of a buffer that is compared at once.
PART = 16 << 20
COPIED = 256 << 20
COPIES = 4
# Few enough that none waits for others.
BATCH = 16
KERNELS = Path(__file__).with_name("kernels.ptx")
ADD = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)


def check(result: Any) -> Any:
    """Returns the values of a call of the bindings; raises for an error code."""
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) == 2 else result[1:]


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def finish() -> None:
    check(driver.cuCtxSynchronize())


class Program:
    def __init__(self, size: int) -> None:
        check(driver.cuInit(0))
        check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))))
        module = check(driver.cuModuleLoadData(KERNELS.read_bytes() + b"\0"))
        self._add = check(driver.cuModuleGetFunction(module, b"add"))
        self._nothing = check(driver.cuModuleGetFunction(module, b"nothing"))
        self._words = size // BUFFERS // WORD
        self._buffers = [check(driver.cuMemAlloc(WORD * self._words)) for _ in range(BUFFERS)]
        for buffer in self._buffers:
            check(driver.cuMemsetD8(buffer, 0, WORD * self._words))
        # The value of all numbers, and what was added to the first one.
        self._value, self._touched = 0, 0
        finish()

    def work(self, passes: int, cpu_seconds: float, phases: int) -> dict[str, Any]:
        def phase(number: int) -> None:
            for _ in range(passes * (number + 1) // phases - passes * number // phases):
                self._value += 1
                for buffer in self._buffers:
                    self._launch_add(buffer, self._words)
            finish()
            until = time.process_time() + cpu_seconds / phases
            while time.process_time() < until:
                pass

        return {"seconds": timed(lambda: [phase(number) for number in range(phases)])}

    def touch(self) -> dict[str, Any]:
        self._touched += 1
        self._launch_add(self._buffers[0], 1)
        finish()
        return {"ended_at": time.perf_counter()}

    def launches(self, count: int) -> dict[str, Any]:
        def submit() -> None:
            check(driver.cuLaunchKernel(self._nothing, 1, 1, 1, 1, 1, 1, 0, 0, ((), ()), 0))

        def to_its_end() -> None:
            submit()
            finish()

        # The first launches load the kernel, and settle how many may be outstanding.
        batches = []
        for _ in range(0, count, BATCH):
            batches.append(timed(lambda: [submit() for _ in range(BATCH)]) / BATCH)
            finish()
        ended = timed(lambda: [to_its_end() for _ in range(count)]) / count
        return {"submitted_ns": 1e9 * min(batches), "ended_ns": 1e9 * ended}

    def copies(self) -> dict[str, Any]:
        size = min(COPIED, WORD * self._words)
        memory = mmap.mmap(-1, size)
        pinned = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        check(driver.cuMemHostRegister(pinned, size, 0))
        device = self._buffers[0]

        def out() -> None:
            for _ in range(COPIES):
                check(driver.cuMemcpyDtoHAsync(pinned, device, size, 0))
            finish()

        def back() -> None:
            for _ in range(COPIES):
                check(driver.cuMemcpyHtoDAsync(device, pinned, size, 0))
            finish()

        out()
        seconds = {"out": timed(out), "in": timed(back)}
        check(driver.cuMemHostUnregister(pinned))
        return {f"{way}_gb_per_s": COPIES * size / taken / 1e9 for way, taken in seconds.items()}

    def check(self) -> dict[str, Any]:
        first = (self._value + self._touched).to_bytes(WORD, sys.byteorder)
        found = bytearray(WORD)
        self._read(self._buffers[0], found)
        right = found == first
        for place, buffer in enumerate(self._buffers):
            right = right and self._is_whole(int(buffer), 1 if place == 0 else 0)
        return {"right": right}

    def _launch_add(self, buffer: Any, words: int) -> None:
        blocks = min(BLOCKS, -(-words // THREADS))
        arguments = ((int(buffer), words, 1), ADD)
        check(driver.cuLaunchKernel(self._add, blocks, 1, 1, THREADS, 1, 1, 0, 0, arguments, 0))

    def _is_whole(self, buffer: int, from_word: int) -> bool:
        step = min(PART // WORD, self._words - from_word)
        part = bytearray(WORD * step)
        expected = self._value.to_bytes(WORD, sys.byteorder) * step
        last = self._words - step
        for first in (*range(from_word, last, step), last):
            self._read(buffer + WORD * first, part)
            if part != expected:
                return False
        return True

    def _read(self, address: Any, into: bytearray) -> None:
        check(driver.cuMemcpyDtoH(ctypes.addressof(ctypes.c_char.from_buffer(into)), address, len(into)))


def main() -> None:
    program = Program(int(sys.argv[1]))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        answer = getattr(program, command)(*(float(word) if "." in word else int(word) for word in words))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
