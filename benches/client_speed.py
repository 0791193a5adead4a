"""What a client notices compared with plain ipykernel in the same run: start, output, idle cost, `%%gpu` output."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.manager import KernelManager
from measuring import Kernel, Place, field_bytes, kernels, milliseconds, private_place, report

PLAIN, SHARED = "python3", "baton"
LINES = "for number in range(100_000):\n    print(number)"
DISPLAYS = (
    "from IPython.display import display\nfor _ in range(200):\n    display({'text/plain': 'x' * 1_000_000}, raw=True)"
)
IDLE_SECONDS = 10
TURNS = 3
STARTS = 48


def start_ms(place: Place, name: str) -> float:
    """From the start to the first reply; then ends it. `wait_for_ready` waits for more, in steps of 200 ms."""
    manager = KernelManager(kernel_name=name)
    begin = time.perf_counter()
    manager.start_kernel(env=place.environment, cwd=str(place.work))
    client = manager.blocking_client()
    client.start_channels()
    client.kernel_info(reply=True, timeout=60)
    taken = (time.perf_counter() - begin) * 1e3
    client.stop_channels()
    manager.shutdown_kernel()
    return taken


def in_turns(plain: Kernel, shared: Kernel, code: str) -> dict[str, float]:
    """The best of a few alternating rounds, in seconds; the steps after them are the same for both."""
    times: dict[str, list[float]] = {PLAIN: [], SHARED: []}
    for turn in range(TURNS):
        for name, kernel in in_turn(turn, (PLAIN, plain), (SHARED, shared)):
            times[name].append(milliseconds(lambda kernel=kernel: kernel.run(code).ok()) / 1e3)
    return {name: min(taken) for name, taken in times.items()}


def in_turn(turn: int, *all_of_them: Any) -> list[Any]:
    """Rotates the order, so that each is first equally often."""
    return list(all_of_them if turn % 2 else reversed(all_of_them))


def check_lines(kernel: Kernel, code: str) -> float:
    """Seconds for 100 000 lines, which must all arrive in order."""
    begin = time.perf_counter()
    result = kernel.run(code, seconds=120).ok()
    taken = time.perf_counter() - begin
    assert result.stdout == "".join(f"{number}\n" for number in range(100_000))
    return taken


def idle_percent(process: psutil.Process) -> float:
    before = computed_s(process)
    time.sleep(IDLE_SECONDS)
    return (computed_s(process) - before) / IDLE_SECONDS * 100


def computed_s(process: psutil.Process) -> float:
    """Measured by the scheduler; a process's own times have a resolution of 10 ms, which is the whole limit here."""
    threads = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def print_to_client_ms(kernel: Kernel) -> float:
    """The clock is the same at both ends: the cell prints the time at which it printed."""
    cell = kernel.begin(
        "%%gpu\nimport time\nfor _ in range(50):\n    print(time.time(), flush=True)\n    time.sleep(0.2)"
    )
    delays, seen = [], 0
    while not cell.done:
        kernel.pump(1)
        now, lines = time.time(), cell.so_far.stdout.split()
        delays += [(now - float(line)) * 1e3 for line in lines[seen:]]
        seen = len(lines)
    return statistics.median(delays)


def main() -> None:
    rows: dict[str, dict[str, Any]] = {}
    verdict: dict[str, Any] = {}

    def compare(what: str, plain: float, shared: float, value: float, most: float) -> None:
        rows[what] = {"plain ipykernel": round(plain, 3), "Python (shared GPU)": round(shared, 3)}
        verdict[what] = f"{round(value, 3)} (target: {most})"

    with private_place() as place:
        starts: dict[str, list[float]] = {PLAIN: [], SHARED: []}
        for turn in range(STARTS):
            for name in in_turn(turn, PLAIN, SHARED):
                starts[name].append(start_ms(place, name))
        before, after = (statistics.median(taken) for taken in starts.values())
        compare("start to first reply, ms: at most more", before, after, after - before, 30)
        with kernels(place, PLAIN, SHARED) as (plain, shared):
            lines = in_turns(plain, shared, LINES)
            compare("100 000 lines, s: least ratio", *lines.values(), lines[PLAIN] / lines[SHARED], 0.9)
            shows = in_turns(plain, shared, DISPLAYS)
            compare("200 MB of displays, s: least ratio", *shows.values(), shows[PLAIN] / shows[SHARED], 0.9)
            status = f"/proc/{shared.proxy.pid}/status"
            peak = field_bytes(status, "VmHWM") / 1e6
            compare("the proxy's memory at its peak, MB: at most", 0, peak, peak, 64)
        with kernels(place, SHARED) as (kernel,):
            kernel.run("pass")
            percent = idle_percent(kernel.proxy)
            compare("idle, % of a processor: at most", 0, percent, percent, 0.1)
            resident = field_bytes(f"/proc/{kernel.proxy.pid}/status", "VmRSS") / 1e6
            compare("resident, MB: at most", 0, resident, resident, 20)
            kernel.gpu("pass").ok()
            here = min(check_lines(kernel, LINES) for _ in range(TURNS))
            there = min(check_lines(kernel, f"%%gpu\n{LINES}") for _ in range(TURNS))
            compare("100 000 lines of a %%gpu cell, s: least ratio", here, there, here / there, 0.5)
            delay = print_to_client_ms(kernel)
            compare("from print in a %%gpu cell to the client, p50 in ms: at most", 0, delay, delay, 5)
    report("client-speed", rows, verdict)


if __name__ == "__main__":
    main()
