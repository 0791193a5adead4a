"""What a sandbox costs: the first cell of a notebook, which starts its session, and an empty cell in a warm session.

Alternates with a worker without a sandbox, in the same run.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from measuring import Kernel, milliseconds, report, spread, summary

# isort: split
from end_to_end import Service

STARTS = 12
CELLS = 300
SANDBOXES = ("none", "bubblewrap", "landlock")
MOST_START_MS = 60
MOST_CELL_RATIO = 1.02


def open_service(cleanup: ExitStack, sandbox: str) -> Service:
    service = Service.create()
    cleanup.callback(service.close)
    service.start_broker()
    # In a sandbox, a mirror would be at the notebook's path; here, sessions work in the notebook's folder itself.
    service.start_worker(slots=2, BATON_WORKER_SANDBOX=sandbox, BATON_WORKER_SESSION_MEMORY="8GiB")
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


def main() -> None:
    with ExitStack() as cleanup:
        services = {sandbox: open_service(cleanup, sandbox) for sandbox in SANDBOXES}
        starts, cells = measure(services)
    rows: dict[str, dict[str, Any]] = {}
    for sandbox in SANDBOXES:
        rows[f"first cell, sandbox {sandbox}"] = summary(starts[sandbox])
        rows[f"empty cell, sandbox {sandbox}"] = spread(cells[sandbox])
    added = rows["first cell, sandbox bubblewrap"]["p50_ms"] - rows["first cell, sandbox none"]["p50_ms"]
    ratio = rows["empty cell, sandbox bubblewrap"]["p50_ms"] / rows["empty cell, sandbox none"]["p50_ms"]
    report(
        "sandbox",
        rows,
        {
            "added to a session's start": f"{added:.0f} ms (target: at most {MOST_START_MS} ms)",
            "empty cell": f"{ratio:.3f} times (target: at most {MOST_CELL_RATIO})",
            "target met": added <= MOST_START_MS and ratio <= MOST_CELL_RATIO,
        },
    )


if __name__ == "__main__":
    main()
