"""`baton run` of a notebook with many empty cells, compared with `jupyter execute` on the plain kernel."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import nbformat
from measuring import Place, private_place, report
from nbformat.v4 import new_code_cell, new_notebook

CELLS = 50
TURNS = 7
TARGET = 1.2
PROGRAMS = Path(sys.executable).parent


def seconds(place: Place, *command: str | Path) -> float:
    begin = time.perf_counter()
    subprocess.run(command, env=place.environment, cwd=place.work, check=True, capture_output=True)
    return time.perf_counter() - begin


def main() -> None:
    with private_place() as place:
        notebook = new_notebook(cells=[new_code_cell("x = 1") for _ in range(CELLS)])
        nbformat.write(notebook, place.work / "empty.ipynb")
        commands = {
            "jupyter execute": (
                PROGRAMS / "jupyter",
                "execute",
                "--kernel_name=python3",
                "--output=plain",
                "empty.ipynb",
            ),
            "baton run": (PROGRAMS / "baton", "run", "empty.ipynb"),
        }
        for command in commands.values():  # the first run also starts the service
            seconds(place, *command)
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(TURNS):
            for name in list(commands) if turn % 2 else reversed(list(commands)):
                taken[name].append(seconds(place, *commands[name]))
    medians = {name: statistics.median(times) for name, times in taken.items()}
    rows = {
        f"`{name}` of {CELLS} empty cells": {
            "p50_s": round(medians[name], 2),
            "min_s": round(min(times), 2),
            "runs": TURNS,
        }
        for name, times in taken.items()
    }
    ratio = medians["baton run"] / medians["jupyter execute"]
    report("notebook-run", rows, {"ratio": f"{ratio:.2f} (target: at most {TARGET})", "target met": ratio <= TARGET})


if __name__ == "__main__":
    main()
