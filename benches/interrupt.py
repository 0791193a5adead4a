"""How long a `%%gpu` cell takes to end after a press on stop, by phase, compared with an ordinary cell."""

from __future__ import annotations

from collections.abc import Callable

from measuring import Kernel, milliseconds, report, summary

# isort: split
from end_to_end import Service
from end_to_end.kernel import Cell
from end_to_end.service import stopped

TURNS = 10
LIMIT_MS = 1000
SLEEPS = "print('begun')\nimport time\ntime.sleep(600)"


def begun(cell: Cell) -> None:
    cell.wait_for_text("begun")


def says_what_it_waits_for(cell: Cell) -> None:
    cell.wait_for(lambda result: result.notices, "the line says what it waits for")


def press(kernel: Kernel, code: str, goes: Callable[[Cell], None]) -> float:
    """Milliseconds from the press to the end of the cell."""
    cell = kernel.begin(code)
    goes(cell)

    def to_the_end() -> None:
        kernel.interrupt()
        result = cell.finish(seconds=30)
        assert result.error is not None, result.outputs
        assert result.error[0] == "KeyboardInterrupt"

    return milliseconds(to_the_end)


def main() -> None:
    service = Service.create()
    kernels: list[Kernel] = []
    try:
        service.start_broker()
        service.start_worker(slots=1)
        for _ in range(2):
            kernels.append(Kernel.start(service.place, BATON_BROKER_ADDRESS=f"unix:{service.socket}"))
        times = measure(service, *kernels)
    finally:
        for one in kernels:
            one.shutdown()
        left = service.close()
    assert not left, left
    rows = {phase: summary(taken) for phase, taken in times.items()}
    slowest = max(row["max_ms"] for row in rows.values())
    verdict = {"slowest": f"{slowest} ms (target: below {LIMIT_MS} ms)", "target met": slowest < LIMIT_MS}
    report("interrupt", rows, verdict)


def measure(service: Service, kernel: Kernel, busy: Kernel) -> dict[str, list[float]]:
    """In alternation. The first round is left out, because IPython loads what it needs to show errors in it."""
    phases: dict[str, Callable[[], float]] = {
        "ordinary cell": lambda: press(kernel, SLEEPS, begun),
        "`%%gpu` cell that runs": lambda: press(kernel, f"%%gpu\n{SLEEPS}", begun),
        "that waits in line": lambda: behind(busy, kernel),
        "whose service does not answer": lambda: unanswered(service, kernel),
    }
    turns = [[once() for once in phases.values()] for _ in range(TURNS + 1)]
    return dict(zip(phases, map(list, zip(*turns[1:], strict=True)), strict=True))


def behind(busy: Kernel, kernel: Kernel) -> float:
    running = busy.begin(f"%%gpu\n{SLEEPS}")
    begun(running)
    taken = press(kernel, "%%gpu\npass", says_what_it_waits_for)
    busy.interrupt()
    running.finish()
    return taken


def unanswered(service: Service, kernel: Kernel) -> float:
    with stopped(service.broker):
        taken = press(kernel, "%%gpu\npass", says_what_it_waits_for)
    kernel.gpu("pass").ok()
    return taken


if __name__ == "__main__":
    main()
