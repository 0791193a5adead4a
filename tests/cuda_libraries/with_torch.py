"""Parts with PyTorch 1.12.1, its CUDA runtime 10.2 and cuBLAS."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from pathlib import Path
from typing import Any

import pynvml
import torch
from parts import MIB, end_cell, go, run, say, sizes, submissions, tell

# The direction of a copy.
ON_DEVICE = 3


def numbers(count: int, seed: int) -> Any:
    return torch.randint(0, 1 << 62, (count,), generator=torch.Generator().manual_seed(seed))


def hold(mebibytes: int, seed: int) -> tuple[Any, Any]:
    """The same data on the host and on the GPU, in tensors of different sizes."""
    parts = [numbers(count, seed + place) for place, count in enumerate(sizes(mebibytes))]
    return parts, [part.cuda() for part in parts]


def check(left: Any, found: Any) -> None:
    wrong = [
        place for place, (one, other) in enumerate(zip(left, found, strict=True)) if not torch.equal(one, other.cpu())
    ]
    tell(not wrong, f"wrong tensors: {wrong}")


def memory(mebibytes: int, rounds: int, seed: int) -> None:
    """All sizes, read, copied on the GPU and freed repeatedly."""
    left, there = hold(mebibytes, seed)
    for turn in range(rounds):
        go()
        check(left, there)
        for one, other in zip(left[turn % 4 :: 4], there[turn % 4 :: 4], strict=True):
            check([one], [torch.empty_like(other).copy_(other)])
        if turn % 3 == 2:
            torch.cuda.empty_cache()


def threads(mebibytes: int, rounds: int, seed: int) -> None:
    """Four threads with separate streams, half of them with pinned memory and events."""
    left, there = hold(mebibytes, seed)
    wrong: list[str] = []

    def work(number: int) -> None:
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
        with torch.cuda.stream(stream):
            for turn in range(rounds * 4):
                own = numbers(1000 + 37_000 * (turn % 7), seed + 100 * number + turn)
                sent = own.pin_memory().cuda(non_blocking=True) if number % 2 else own.cuda()
                copy = torch.empty_like(sent).copy_(sent)
                event.record(stream)
                event.synchronize()
                back = torch.empty_like(own, pin_memory=True)
                back.copy_(copy, non_blocking=True)
                stream.synchronize()
                if not torch.equal(back, own):
                    wrong.append(f"thread {number} in turn {turn}")

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    say("; ".join(wrong) or "right")
    check(left, there)


class Squares(torch.utils.data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 16

    def __getitem__(self, place: int) -> Any:
        return torch.full((2000,), place * place)


def loader(mebibytes: int, rounds: int, seed: int) -> None:
    """A DataLoader forks workers while the process has memory on the GPU and on the host."""
    left, there = hold(mebibytes, seed)
    for _ in range(rounds):
        batches = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2, pin_memory=True)
        sums = [int(batch.cuda(non_blocking=True).cpu().sum()) for batch in batches]
        tell(sum(sums) == 2000 * sum(one * one for one in range(16)), f"wrong batches: {sums}")
        check(left, there)


def graphs(mebibytes: int, rounds: int, seed: int) -> None:
    """A captured copy still works after its memory has moved.

    PyTorch has no graphs with CUDA 10, but its runtime has.
    """
    left, there = hold(mebibytes, seed)
    source, target = there[3], torch.empty_like(there[3])
    (library,) = Path(torch.__file__).parent.glob("lib/libcudart*")
    runtime = ctypes.CDLL(str(library))

    def call(name: str, *values: object) -> None:
        if code := getattr(runtime, name)(*values):
            raise RuntimeError(f"{name}: {code}")

    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    stream = torch.cuda.Stream()
    handle = ctypes.c_void_p(stream.cuda_stream)
    addresses = [ctypes.c_void_p(one.data_ptr()) for one in (target, source)]
    torch.cuda.synchronize()
    call("cudaStreamBeginCapture", handle, 0)
    call("cudaMemcpyAsync", *addresses, ctypes.c_size_t(8 * source.numel()), ON_DEVICE, handle)
    call("cudaStreamEndCapture", handle, ctypes.byref(graph))
    call("cudaGraphInstantiate", ctypes.byref(executable), graph, None, None, ctypes.c_size_t(0))
    for turn in range(rounds):
        go()
        target.copy_(numbers(target.numel(), seed + turn))
        torch.cuda.synchronize()
        call("cudaGraphLaunch", executable, handle)
        stream.synchronize()
        tell(torch.equal(target.cpu(), left[3]), f"the graph did not copy in turn {turn}")
    check(left, there)


def cache(mebibytes: int, rounds: int, seed: int) -> None:
    """Freed memory that the library holds, and memory that it returns to the driver."""
    kept, there = hold(mebibytes // 4, seed)
    for turn in range(rounds):
        large, copies = hold(mebibytes // 2, seed + 1000 * turn)
        check(large, copies)
        del large, copies
        gc.collect()
        go()
        if turn % 2:
            torch.cuda.empty_cache()
        tell(torch.cuda.memory_allocated() < torch.cuda.memory_reserved() + MIB, "wrong counts")
    check(kept, there)


def trims(mebibytes: int, rounds: int, seed: int) -> None:
    left, there = hold(mebibytes, seed)
    check(left, there)
    del there
    loop = end_cell()
    tell(torch.cuda.memory_reserved() > mebibytes * MIB // 2, "wrong: nothing is held")
    loop.run_forever()
    held = torch.cuda.memory_reserved()
    tell(held == 0, f"wrong: {held} bytes are still held")


def monitor(mebibytes: int, rounds: int, seed: int) -> None:
    """NVIDIA's bindings of the driver's monitoring show what the session has, and no other process."""
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    for turn in range(rounds):
        go()
        left, there = hold(mebibytes // (turn + 1), seed)
        torch.cuda.synchronize()
        (free, total), used = torch.cuda.mem_get_info(), torch.cuda.memory_reserved()
        for version in (None, pynvml.nvmlMemory_v2):
            shown = pynvml.nvmlDeviceGetMemoryInfo(gpu, version)
            tell((shown.total, shown.used, shown.free) == (total, used, free), f"wrong: {shown}")
        tell(free == total - used, f"wrong: {free} of {total} bytes are free, and {used} used")
        processes = [(one.pid, one.usedGpuMemory) for one in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)]
        tell(processes == [(os.getpid(), used)], f"wrong: {processes}")
        check(left, there)
        del left, there
        torch.cuda.empty_cache()


def calls(mebibytes: int, rounds: int, seed: int) -> None:
    """The library's own functions work: cuBLAS, launches, information."""
    free, total = torch.cuda.mem_get_info()
    tell(0 < free <= total, f"wrong: {free} of {total} bytes are free")
    for _ in range(rounds):
        ones = torch.ones(64, 64, device="cuda")
        for _ in range(200):
            ones.add_(1)
        tell((ones @ ones).shape == (64, 64), "wrong shape")
    torch.cuda.synchronize()
    passed = submissions()
    tell(passed >= 200 * rounds, f"only {passed} submissions passed the gate")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.cuda.init()
    run(memory, threads, loader, graphs, cache, trims, monitor, calls)
