"""What the first cell of a notebook waits for: a session forked from a zygote, alternating with one that starts Python.

The notebook has imported PyTorch itself if its cell does, so only the session's imports are measured. Both workers have
the default sandbox.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from contextlib import ExitStack
from typing import Any

import psutil
from measuring import Kernel, milliseconds, report, summary

# isort: split
from end_to_end import Service, wait_until

ROUNDS = 5
AT_ONCE = 20
CROWDS = 2
WAYS = ("fresh", "forked")
NOTHING = "pass"
TORCH = "import torch\ntotal = torch.ones(3).sum().item()"
STEP = """
import torch
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.Adam(layer.parameters())
layer(torch.ones(1, 2)).sum().backward()
optimizer.step()
total = layer.weight.sum().item()
del layer, optimizer
"""
CELLS = {"nothing": NOTHING, "torch": TORCH, "a step of Adam": STEP}
MOST_TORCH_MS = 350
MOST_CROWD_MS = 2000
MOST_MB = 40


def open_service(cleanup: ExitStack, way: str) -> Service:
    service = Service.create()
    cleanup.callback(service.close)
    service.start_broker()
    service.start_worker(
        slots=AT_ONCE,
        BATON_WORKER_PYTHON=sys.executable,
        BATON_WORKER_WARM_STARTS=str(way == "forked").lower(),
        BATON_WORKER_PRELOAD="numpy,torch,torch._dynamo",
    )
    if way == "forked":
        log = "Sessions start with these libraries loaded"
        wait_until(lambda: log in service.log("worker-0"), "the zygote is ready", seconds=300)
    return service


def open_kernel(service: Service) -> Kernel:
    kernel = Kernel.start(service.place, BATON_BROKER_ADDRESS=f"unix:{service.socket}")
    kernel.run("import numpy, torch").ok()
    return kernel


def private_mb(kernel: Kernel) -> float:
    """Of the session and its supervisor."""
    session = psutil.Process(kernel.session_pid)
    supervisor = session.parent()
    processes = [session] if supervisor is None else [session, supervisor]
    return sum(process.memory_full_info().uss for process in processes) / 1e6


def crowd(service: Service) -> float:
    """Milliseconds until all of them have had their first cell."""
    with ExitStack() as cleanup:
        kernels = []
        for _ in range(AT_ONCE):
            kernels.append(Kernel.start(service.place, BATON_BROKER_ADDRESS=f"unix:{service.socket}"))
            cleanup.callback(kernels[-1].shutdown)
        for kernel in kernels:
            kernel.run("pass").ok()
        begin = threading.Barrier(AT_ONCE + 1)
        ends: list[float] = []

        def first(kernel: Kernel) -> None:
            begin.wait()
            kernel.gpu(NOTHING).ok()
            ends.append(time.perf_counter())

        threads = [threading.Thread(target=first, args=(kernel,)) for kernel in kernels]
        for thread in threads:
            thread.start()
        begin.wait()
        began = time.perf_counter()
        for thread in threads:
            thread.join()
        assert len(ends) == AT_ONCE
        return (max(ends) - began) * 1e3


def main() -> None:
    times: dict[tuple[str, str], list[float]] = {(what, way): [] for what in CELLS for way in WAYS}
    memory: dict[str, list[float]] = {way: [] for way in WAYS}
    crowds: dict[str, list[float]] = {way: [] for way in WAYS}
    with ExitStack() as cleanup:
        services = {way: open_service(cleanup, way) for way in WAYS}
        for _ in range(ROUNDS):
            for what, code in CELLS.items():
                for way, service in services.items():
                    kernel = open_kernel(service)
                    times[what, way].append(milliseconds(lambda kernel=kernel, code=code: kernel.gpu(code).ok()))
                    if code == TORCH:
                        memory[way].append(private_mb(kernel))
                    kernel.shutdown()
        for _ in range(CROWDS):
            for way, service in services.items():
                crowds[way].append(crowd(service))
    rows: dict[str, dict[str, Any]] = {}
    ratios = {}
    for what in CELLS:
        for way in WAYS:
            rows[f"first cell with {what}, {way}"] = summary(times[what, way])
        ratios[what] = statistics.median(times[what, "fresh"]) / statistics.median(times[what, "forked"])
    for way in WAYS:
        rows[f"{AT_ONCE} sessions at once, {way}"] = summary(crowds[way])
    ratios[f"{AT_ONCE} at once"] = statistics.median(crowds["fresh"]) / statistics.median(crowds["forked"])
    torch = rows["first cell with torch, forked"]["p50_ms"]
    crowd_ms = rows[f"{AT_ONCE} sessions at once, forked"]["p50_ms"]
    megabytes = {way: statistics.median(memory[way]) for way in WAYS}
    report(
        "cold-start",
        rows,
        {
            "build of the programs": os.environ.get("PROFILE", "dev"),
            "fresh takes as long as forked, times": ", ".join(f"{what} {ratio:.1f}" for what, ratio in ratios.items()),
            "first cell with torch": f"{torch:.0f} ms (target: at most {MOST_TORCH_MS} ms)",
            f"{AT_ONCE} sessions at once": f"{crowd_ms:.0f} ms (target: below {MOST_CROWD_MS} ms)",
            "private memory of an idle session with torch": f"{megabytes['forked']:.0f} MB, fresh "
            f"{megabytes['fresh']:.0f} MB (target: below {MOST_MB} MB)",
            "target met": torch <= MOST_TORCH_MS and crowd_ms < MOST_CROWD_MS and megabytes["forked"] < MOST_MB,
        },
    )


if __name__ == "__main__":
    main()
