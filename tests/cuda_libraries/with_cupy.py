"""Parts with CuPy 12.3 for CUDA 10.2, on PyTorch's copies of the CUDA runtime, cuBLAS and NVRTC."""

from __future__ import annotations

import os
import sys
from typing import Any

# CuPy is linked to libraries that are not here. With this flag, the loader looks for functions when they are called.
sys.setdlopenflags(os.RTLD_LAZY)

import cupy  # noqa: E402
import numpy as np  # noqa: E402
from parts import MIB, arrays, check, end_cell, go, numbers, run, submissions, tell  # noqa: E402


def hold(mebibytes: int, seed: int) -> tuple[Any, Any]:
    """The same data on the host and on the GPU."""
    left = arrays(mebibytes, seed)
    return left, [cupy.asarray(one) for one in left]


def copy(array: Any, stream: Any = None) -> Any:
    """By the driver, because kernels copy nothing here."""
    made = cupy.empty_like(array)
    if stream is None:
        made.data.copy_from_device(array.data, array.nbytes)
    else:
        made.data.copy_from_device_async(array.data, array.nbytes, stream)
    return made


def memory(mebibytes: int, rounds: int, seed: int) -> None:
    """All sizes, read, copied on the GPU and freed repeatedly, from CuPy's pool."""
    left, there = hold(mebibytes, seed)
    for turn in range(rounds):
        go()
        check(left, [one.get() for one in there])
        check(left[turn % 4 :: 4], [copy(one).get() for one in there[turn % 4 :: 4]])
        if turn % 3 == 2:
            cupy.get_default_memory_pool().free_all_blocks()


def streams(mebibytes: int, rounds: int, seed: int) -> None:
    """Four streams with events and memory of CuPy's pinned pool."""
    left, there = hold(mebibytes, seed)
    used = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
    for turn in range(rounds * 4):
        sent, back = [], []
        for place, stream in enumerate(used):
            own = numbers(1000 + 37_000 * ((turn + place) % 7), seed + 100 * place + turn)
            memory = cupy.cuda.alloc_pinned_memory(own.nbytes)
            pinned = np.frombuffer(memory, own.dtype, own.size)
            pinned[:] = own
            with stream:
                array = cupy.empty(own.shape, own.dtype)
                array.set(pinned, stream=stream)
                event = cupy.cuda.Event(block=True)
                event.record(stream)
                used[place - 1].wait_event(event)
                back.append(copy(array, stream).get(stream=stream))
                stream.synchronize()
            sent.append(own)
        check(sent, back)
    check(left, [one.get() for one in there])


def graphs(mebibytes: int, rounds: int, seed: int) -> None:
    """A captured copy still works after its memory has moved."""
    left, there = hold(mebibytes, seed)
    source, target = there[3], cupy.empty_like(there[3])
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        stream.begin_capture()
        target.data.copy_from_device_async(source.data, source.nbytes, stream)
        graph = stream.end_capture()
    for turn in range(rounds):
        go()
        target.set(numbers(target.size, seed + turn))
        cupy.cuda.runtime.deviceSynchronize()
        graph.launch(stream)
        stream.synchronize()
        check([left[3]], [target.get()])
    check(left, [one.get() for one in there])


def pools(mebibytes: int, rounds: int, seed: int) -> None:
    """A pool of its own whose memory returns to the driver, and one of managed memory."""
    left, there = hold(mebibytes // 2, seed)
    own, managed = cupy.cuda.MemoryPool(), cupy.cuda.MemoryPool(cupy.cuda.malloc_managed)
    for turn in range(rounds):
        go()
        for pool in (own, managed):
            with cupy.cuda.using_allocator(pool.malloc):
                kept, copies = hold(mebibytes // 10, seed + 1000 * turn)
                check(kept, [one.get() for one in copies])
            del copies
            pool.free_all_blocks()
            tell(pool.total_bytes() == 0, f"{pool.total_bytes()} bytes of a pool are held")
    check(left, [one.get() for one in there])


def trims(mebibytes: int, rounds: int, seed: int) -> None:
    left, there = hold(mebibytes, seed)
    check(left, [one.get() for one in there])
    del there
    pool = cupy.get_default_memory_pool()
    loop = end_cell()
    tell(pool.total_bytes() > mebibytes * MIB // 2, "wrong: nothing is held")
    loop.run_forever()
    tell(pool.total_bytes() == 0, f"wrong: {pool.total_bytes()} bytes are still held")


def calls(mebibytes: int, rounds: int, seed: int) -> None:
    """CuPy compiles kernels with NVRTC, launches them, and calls cuBLAS."""
    for _ in range(rounds):
        ones = cupy.ones((64, 64))
        for _ in range(200):
            ones += 1
        tell((ones @ ones).shape == (64, 64), "wrong shape")
    cupy.cuda.runtime.deviceSynchronize()
    passed = submissions()
    tell(passed >= 200 * rounds, f"only {passed} submissions passed the gate")


if __name__ == "__main__":
    cupy.cuda.runtime.memGetInfo()
    run(memory, streams, graphs, pools, trims, calls)
