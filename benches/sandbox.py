"""What a sandbox costs: the start of a session, an empty cell, variables through memory, and files through a mirror.

Alternates with a worker without a sandbox, in the same run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from measuring import Kernel, milliseconds, report, spread, summary

# isort: split
from end_to_end import Service

STARTS = 12
CELLS = 300
TRANSFERS, WARM_UPS = 15, 2
ARRAY_BYTES = 64 << 20
FILE_BYTES = 16 << 20
OPENS = 1000
SANDBOXES = ("none", "bubblewrap", "landlock")
MOST_START_MS = 60
MOST_CELL_RATIO = 1.02
MOST_TRANSFER_RATIO = 1.1
"""What is unchanged differs by less from run to run."""


def open_service(cleanup: ExitStack, sandbox: str, files: str = "auto") -> Service:
    """`auto`: sessions work in the notebook's folder itself."""
    service = Service.create()
    cleanup.callback(service.close)
    service.start_broker()
    limits = {"BATON_WORKER_SANDBOX": sandbox, "BATON_WORKER_SESSION_MEMORY": "8GiB"}
    service.start_worker(slots=2, BATON_WORKER_FILES=files, **limits)
    return service


def open_kernel(service: Service) -> Kernel:
    kernel = Kernel.start(service.place, BATON_BROKER_ADDRESS=f"unix:{service.socket}")
    kernel.run("pass").ok()
    return kernel


def first_cell(service: Service) -> float:
    kernel = open_kernel(service)
    try:
        return milliseconds(lambda: kernel.gpu("pass").ok())
    finally:
        kernel.shutdown()


def measure(services: dict[str, Service]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    starts: dict[str, list[float]] = {sandbox: [] for sandbox in services}
    cells: dict[str, list[float]] = {sandbox: [] for sandbox in services}
    for _ in range(STARTS):
        for sandbox, service in services.items():
            starts[sandbox].append(first_cell(service))
    with ExitStack() as cleanup:
        kernels = {}
        for sandbox, service in services.items():
            kernels[sandbox] = open_kernel(service)
            cleanup.callback(kernels[sandbox].shutdown)
        for kernel in kernels.values():
            for _ in range(20):
                kernel.gpu("pass").ok()
        for _ in range(CELLS):
            for sandbox, kernel in kernels.items():
                cells[sandbox].append(milliseconds(lambda kernel=kernel: kernel.gpu("pass")))
    return starts, cells


def through_memory(kernel: Kernel) -> float:
    """New bytes for a cell, which changes all of them."""
    kernel.run(f"x = np.random.default_rng().integers(0, 256, {ARRAY_BYTES}, dtype='uint8')").ok()
    return milliseconds(lambda: (kernel.gpu("x ^= 255").ok(), kernel.run("last = x[-1]").ok()))


def through_mirror(kernel: Kernel) -> float:
    """A new file for a cell, which writes as much."""
    kernel.run(f"with open('given', 'wb') as file: file.write(os.urandom({FILE_BYTES}))\ndel file").ok()
    code = "with open('given', 'rb') as one, open('made', 'wb') as other: other.write(one.read()[::-1])\ndel one, other"
    return milliseconds(lambda: kernel.gpu(code).ok())


def opens(kernel: Kernel) -> float:
    return milliseconds(lambda: kernel.gpu(f"for _ in range({OPENS}): open('given', 'rb').close()").ok())


TRANSFER: dict[str, tuple[str, Callable[[Kernel], float]]] = {
    f"{ARRAY_BYTES >> 20} MiB through memory and back": ("auto", through_memory),
    f"{FILE_BYTES >> 20} MiB through a mirror and back": ("mirror", through_mirror),
    f"{OPENS} opens in a mirror": ("mirror", opens),
}


def measure_transfers() -> dict[tuple[str, str], list[float]]:
    times: dict[tuple[str, str], list[float]] = {}
    for files in ("auto", "mirror"):
        with ExitStack() as cleanup:
            kernels = {}
            for sandbox in SANDBOXES:
                kernels[sandbox] = open_kernel(open_service(cleanup, sandbox, files))
                cleanup.callback(kernels[sandbox].shutdown)
                kernels[sandbox].run("import os\nimport numpy as np").ok()
            measured = {what: transfer for what, (needed, transfer) in TRANSFER.items() if needed == files}
            for what, transfer in measured.items():
                times |= {(what, sandbox): [] for sandbox in SANDBOXES}
                for _ in range(WARM_UPS + TRANSFERS):
                    for sandbox, kernel in kernels.items():
                        times[what, sandbox].append(transfer(kernel))
    return {key: taken[WARM_UPS:] for key, taken in times.items()}


def main() -> None:
    with ExitStack() as cleanup:
        services = {sandbox: open_service(cleanup, sandbox) for sandbox in SANDBOXES}
        starts, cells = measure(services)
    transfers = measure_transfers()
    rows: dict[str, dict[str, Any]] = {}
    for sandbox in SANDBOXES:
        rows[f"first cell, sandbox {sandbox}"] = summary(starts[sandbox])
        rows[f"empty cell, sandbox {sandbox}"] = spread(cells[sandbox])
    added = rows["first cell, sandbox bubblewrap"]["p50_ms"] - rows["first cell, sandbox none"]["p50_ms"]
    ratio = rows["empty cell, sandbox bubblewrap"]["p50_ms"] / rows["empty cell, sandbox none"]["p50_ms"]
    for (what, sandbox), times in transfers.items():
        rows[f"{what}, sandbox {sandbox}"] = summary(times)
    # The shortest times, because a median depends on what else the machine does with its memory and disk.
    moved = {
        what: rows[f"{what}, sandbox bubblewrap"]["min_ms"] / rows[f"{what}, sandbox none"]["min_ms"]
        for what in TRANSFER
    }
    report(
        "sandbox",
        rows,
        {
            "build of the programs": os.environ.get("PROFILE", "dev"),
            "added to a session's start": f"{added:.0f} ms (target: at most {MOST_START_MS} ms)",
            "empty cell": f"{ratio:.3f} times (target: at most {MOST_CELL_RATIO})",
            **{what: f"{times:.2f} times (target: at most {MOST_TRANSFER_RATIO})" for what, times in moved.items()},
            "target met": added <= MOST_START_MS
            and ratio <= MOST_CELL_RATIO
            and max(moved.values()) <= MOST_TRANSFER_RATIO,
        },
    )


if __name__ == "__main__":
    main()
