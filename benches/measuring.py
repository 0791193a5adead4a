"""What all benchmarks share: a place, clocks, percentiles, and how results are written."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "tests"))

from end_to_end import Kernel, Place  # noqa: E402

RESULTS = FOLDER / "results"


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
def kernels(place: Place, *names: str) -> Iterator[list[Kernel]]:
    started: list[Kernel] = []
    try:
        for name in names:
            started.append(Kernel.start(place, name))
        yield started
    finally:
        for kernel in started:
            kernel.shutdown()


def milliseconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3


def spread(times: list[float]) -> dict[str, float]:
    """p50 and p99, in milliseconds."""
    centiles = statistics.quantiles(times, n=100, method="inclusive")
    return {"p50_ms": round(statistics.median(times), 3), "p99_ms": round(centiles[98], 3), "runs": len(times)}


def report(name: str, rows: dict[str, dict[str, Any]], verdict: dict[str, Any]) -> None:
    """Write the result as JSON and as a Markdown table, and print the table."""
    RESULTS.mkdir(exist_ok=True)
    result = {"benchmark": name, "machine": machine(), "rows": rows, "verdict": verdict}
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    text = markdown(name, rows, verdict)
    (RESULTS / f"{name}.md").write_text(text)
    sys.stdout.write(text)


def machine() -> dict[str, str]:
    packages = ("ipykernel", "ipyparallel", "numpy", "baton-jupyter")
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "load": f"{os.getloadavg()[0]:.1f}",
    } | {package: version(package) for package in packages}


def markdown(name: str, rows: dict[str, dict[str, Any]], verdict: dict[str, Any]) -> str:
    columns = list(next(iter(rows.values())))
    lines = [f"# {name}", "", f"| what | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
    lines += [
        f"| {what} | {' | '.join(str(row.get(column, '')) for column in columns)} |" for what, row in rows.items()
    ]
    lines += ["", *(f"* {what}: {value}" for what, value in verdict.items())]
    lines += ["", "Measured on: " + ", ".join(f"{key} {value}" for key, value in machine().items()) + ".", ""]
    return "\n".join(lines)
