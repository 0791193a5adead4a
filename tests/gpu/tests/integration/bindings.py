"""A program that computes with NVIDIA's own Python bindings of the driver.

It fills memory, reports that, waits for a line, and checks whether its memory is unchanged.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from cuda.bindings import driver


def check(result: tuple[Any, ...]) -> Any:
    """Returns the values of a call of the bindings: (code, values...)."""
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) == 2 else result[1:]


def main() -> None:
    count, rounds = int(sys.argv[1]) // 8, int(sys.argv[2])
    check(driver.cuInit(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))))
    module = check(driver.cuModuleLoadData(b"image"))
    add = check(driver.cuModuleGetFunction(module, b"add"))
    stream = check(driver.cuStreamCreate(1))
    memory = check(driver.cuMemAlloc(8 * count))
    check(driver.cuMemsetD8Async(memory, 0, 8 * count, stream))
    free, total = check(driver.cuMemGetInfo())
    assert free <= total - 8 * count, (free, total)
    assert ctypes.CDLL(None).baton_gpu_submissions() == 1
    print("ok ready", flush=True)

    numbers = (ctypes.c_uint64 * count)()
    for done, _line in zip(range(rounds), sys.stdin, strict=False):
        words = (int(memory), count, 3)
        types = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
        check(driver.cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, (words, types), 0))
        check(driver.cuMemcpyDtoHAsync(ctypes.addressof(numbers), memory, 8 * count, stream))
        check(driver.cuStreamSynchronize(stream))
        right = set(numbers) == {3 * (done + 1)}
        print("ok right" if right else "ok wrong", flush=True)
    check(driver.cuMemFree(memory))


main()
