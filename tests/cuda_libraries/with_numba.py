"""Parts with Numba, which calls the driver through cuda.bindings. Its compiler is not installed."""

from __future__ import annotations

from typing import Any

from numba import cuda
from parts import arrays, check, go, numbers, run, tell


def hold(mebibytes: int, seed: int) -> tuple[Any, Any]:
    """The same data on the host and on the GPU."""
    left = arrays(mebibytes, seed)
    return left, [cuda.to_device(one) for one in left]


def memory(mebibytes: int, rounds: int, seed: int) -> None:
    """All sizes, read, copied on the GPU and freed repeatedly; Numba frees late."""
    left, there = hold(mebibytes, seed)
    for turn in range(rounds):
        go()
        check(left, [one.copy_to_host() for one in there])
        for one, other in zip(left[turn % 4 :: 4], there[turn % 4 :: 4], strict=True):
            made = cuda.device_array_like(other)
            made.copy_to_device(other)
            check([one], [made.copy_to_host()])
            check([one[len(one) // 2 :]], [made[len(one) // 2 :].copy_to_host()])


def streams(mebibytes: int, rounds: int, seed: int) -> None:
    """Four streams with pinned arrays, arrays of the program that are pinned for a while, and events."""
    left, there = hold(mebibytes, seed)
    used = [cuda.stream() for _ in range(4)]
    for turn in range(rounds * 4):
        own, back = [], []
        for place, stream in enumerate(used):
            own.append(numbers(1000 + 37_000 * ((turn + place) % 7), seed + 100 * place + turn))
            with cuda.pinned(own[-1]):
                array = cuda.to_device(own[-1], stream=stream)
                event = cuda.event()
                event.record(stream)
                event.wait(used[place - 1])
                event.synchronize()
            back.append(cuda.pinned_array(own[-1].shape, own[-1].dtype))
            array.copy_to_host(back[-1], stream=stream)
            stream.synchronize()
        check(own, back)
    check(left, [one.copy_to_host() for one in there])


def host_memory(mebibytes: int, rounds: int, seed: int) -> None:
    """Managed and mapped arrays."""
    left, there = hold(mebibytes // 2, seed)
    for turn in range(rounds):
        go()
        for make in (cuda.managed_array, cuda.mapped_array):
            array = numbers(mebibytes * 10_000, seed + 1000 * turn)
            made = make(array.shape, array.dtype)
            made[:] = array
            check([array], [made])
            del made
    check(left, [one.copy_to_host() for one in there])
    free, total = cuda.current_context().get_memory_info()
    tell(0 <= free <= total, f"wrong: {free} of {total} bytes are free")


if __name__ == "__main__":
    cuda.current_context()
    run(memory, streams, host_memory)
