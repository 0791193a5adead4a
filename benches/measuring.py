"""Shared code of all benchmarks: a place, clocks, percentiles, and how results are written."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import psutil

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "tests"))
if shutil.which("bwrap"):
    os.environ.setdefault("BATON_TEST_SANDBOX", "")  # what users have: `baton up` without a sandbox

from end_to_end import Kernel, Place  # noqa: E402
from end_to_end.place import is_service  # noqa: E402

# Results of this machine. `page.py` adds them to the page of the release.
RESULTS = FOLDER.parent / "target/benches"


@contextmanager
def private_place() -> Iterator[Place]:
    """A user without any configuration; everything ends with the block."""
    place = Place.create()
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(place.environment)
    try:
        yield place
    finally:
        left = place.close()
        os.environ.clear()
        os.environ.update(before)
        assert not left, left


@contextmanager
def kernels(place: Place, *names: str, **environment: str) -> Iterator[list[Kernel]]:
    started: list[Kernel] = []
    try:
        for name in names:
            started.append(Kernel.start(place, name, **environment))
        yield started
    finally:
        for kernel in started:
            kernel.shutdown()


def milliseconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3


def repeated(work: Callable[[], object], before: Callable[[], object] = lambda: None, runs: int = 5) -> dict[str, Any]:
    """Shortest, median and longest time, in milliseconds."""
    times = []
    for _ in range(runs):
        before()
        times.append(milliseconds(work))
    return summary(times)


def summary(times: list[float]) -> dict[str, Any]:
    at = {"min_ms": min(times), "p50_ms": statistics.median(times), "max_ms": max(times)}
    return {what: round(time, 3) for what, time in at.items()} | {"runs": len(times)}


def sides(kernel: Kernel) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """The processes of the notebook, and those of the machine that runs its cells.

    The service of a single user is a child of the first proxy that needed it.
    """
    home = [kernel.proxy, *(child for child in kernel.proxy.children() if not is_service(child))]
    return home, [process for process in kernel.place.processes() if process not in home]


class Peak:
    """The most that two groups of processes hold while the block runs, beyond what they held before.

    A process holds its own pages; the second group also holds files in memory. Those are counted for the whole machine,
    so other users of the machine affect them.
    """

    def __init__(self, *groups: list[psutil.Process]) -> None:
        self._groups = groups
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peak:
        self._before = self._held()
        self._peak = self._before
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def extra_mb(self, group: int, state_bytes: int = 0) -> int:
        return round((self._peak[group] - self._before[group] - state_bytes) / 1e6)

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            self._peak = [max(pair) for pair in zip(self._peak, self._held(), strict=True)]

    def _held(self) -> list[int]:
        held = [sum(field_bytes(f"/proc/{process.pid}/status", "RssAnon") for process in g) for g in self._groups]
        held[1] += field_bytes("/proc/meminfo", "Shmem")
        return held


def field_bytes(path: str, field: str) -> int:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def spread(times: list[float]) -> dict[str, float]:
    """p50 and p99, in milliseconds."""
    centiles = statistics.quantiles(times, n=100, method="inclusive")
    return {"p50_ms": round(statistics.median(times), 3), "p99_ms": round(centiles[98], 3), "runs": len(times)}


def report(name: str, rows: dict[str, dict[str, Any]], verdict: dict[str, Any], facts: list[Any] | None = None) -> None:
    """Writes the result as JSON and as a Markdown table, and prints the table.

    `facts` are further findings, in JSON only.
    """
    result = {
        "benchmark": name,
        "about": (sys.modules["__main__"].__doc__ or "").partition("\n")[0],
        "machine": machine(),
        "rows": rows,
        "verdict": verdict,
        **({"facts": facts} if facts else {}),
    }
    text = markdown(result)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    (RESULTS / f"{name}.md").write_text(text)
    sys.stdout.write(text)


def machine() -> dict[str, str]:
    packages = ("ipykernel", "cloudpickle", "dill", "ipyparallel", "numpy", "torch", "baton-jupyter")
    return {
        "date": datetime.date.today().isoformat(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "load": f"{os.getloadavg()[0]:.1f}",
        **{package: version(package) for package in packages if any(distributions(name=package))},
        **({"GPU": gpus} if (gpus := gpu()) else {}),
    }


def gpu() -> str:
    """Name, driver and memory of each GPU, according to NVIDIA's program; empty if there is none."""
    try:
        command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "; ".join(said.stdout.splitlines()) if said.returncode == 0 else ""


def markdown(result: dict[str, Any], heading: str = "#") -> str:
    """A section with the table of measurements."""
    rows: dict[str, dict[str, Any]] = result["rows"]
    columns = list(next(iter(rows.values())))
    lines = [f"{heading} {result['benchmark']}", "", result["about"], ""]
    lines += [f"| what | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
    lines += [
        f"| {what} | {' | '.join(str(row.get(column, '')) for column in columns)} |" for what, row in rows.items()
    ]
    lines += ["", *(f"* {what}: {value}" for what, value in result["verdict"].items())]
    lines += ["", "Measured on: " + ", ".join(f"{key} {value}" for key, value in result["machine"].items()) + ".", ""]
    return "\n".join(lines)
