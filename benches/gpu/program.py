"""A program with phases on the GPU and on the processor, which checks its memory at its end.

`program.py BYTES PASSES CPU_SECONDS PHASES`: buffers of so many bytes together. A pass writes every byte of them on the
GPU; passes and seconds of the processor are spread over the phases. It says `ready`, waits for a line, and then says as
JSON how long it took and whether every number is what the last pass wrote.

Only the driver is needed, through NVIDIA's bindings. It runs alike with and without the interposer.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

from cuda.bindings import driver

BUFFERS = 8
WORD = 4
# So much of a buffer is compared at once.
PART = 16 << 20


def check(result: Any) -> Any:
    """What the bindings return: a code and values."""
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) == 2 else result[1:]


def open_device() -> None:
    check(driver.cuInit(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))))


def write(buffers: list[Any], words: int, value: int) -> None:
    for buffer in buffers:
        check(driver.cuMemsetD32Async(buffer, value, words, 0))


def is_whole(buffer: Any, words: int, value: int) -> bool:
    step = min(PART // WORD, words)
    part = bytearray(WORD * step)
    address = ctypes.addressof(ctypes.c_char.from_buffer(part))
    expected = value.to_bytes(WORD, sys.byteorder) * step
    for first in (*range(0, words - step, step), words - step):
        check(driver.cuMemcpyDtoH(address, int(buffer) + WORD * first, WORD * step))
        if part != expected:
            return False
    return True


def main() -> None:
    size, passes, phases = (int(sys.argv[index]) for index in (1, 2, 4))
    cpu_seconds = float(sys.argv[3])
    open_device()
    words = size // BUFFERS // WORD
    buffers = [check(driver.cuMemAlloc(WORD * words)) for _ in range(BUFFERS)]
    write(buffers, words, 0)
    check(driver.cuCtxSynchronize())
    print("ready", flush=True)
    sys.stdin.readline()

    begin = time.perf_counter()
    value = 0
    for phase in range(phases):
        until = passes * (phase + 1) // phases
        while value < until:
            value += 1
            write(buffers, words, value)
        check(driver.cuCtxSynchronize())
        spent = time.process_time() + cpu_seconds / phases
        while time.process_time() < spent:
            pass
    seconds = time.perf_counter() - begin
    right = all(is_whole(buffer, words, value) for buffer in buffers)
    print(json.dumps({"seconds": seconds, "right": right}), flush=True)


if __name__ == "__main__":
    main()
