"""Plain Python programs of one imaginary user."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil

from end_to_end.place import Place

HERE = {"BATON_SESSION": "of this test"}
"""Makes `baton` take this machine for the GPU machine, so that a program runs as in plain Python."""


class Programs:
    def __init__(self, place: Place, folder: Path) -> None:
        self.folder = folder
        self.environment = place.environment
        self._running: list[subprocess.Popen[str]] = []

    def write(self, source: str, name: str = "train.py") -> str:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return name

    def begin(self, *command: str, environment: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
        everything = self.environment | (environment or {})
        python = [sys.executable, "-X", "faulthandler"]
        process = subprocess.Popen([*python, *command], env=everything, cwd=self.folder, text=True, **options)
        self._running.append(process)
        return process

    def run(self, *command: str, **options: Any) -> tuple[str, int]:
        """The output of both streams, and the exit code."""
        process = self.begin(*command, **options)
        output, _ = process.communicate(timeout=300)
        return output, process.returncode

    def close(self) -> None:
        """Ends what still runs. Pytest shows the stacks of a program that has hung."""
        for process in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGABRT)
                process.send_signal(signal.SIGCONT)  # it may be stopped
            output, _ = process.communicate()
            if process.returncode == -signal.SIGABRT:
                print(output)


def helper_of(pid: int) -> psutil.Process:
    found = [child for child in psutil.Process(pid).children() if "program" in child.cmdline()[1:2]]
    assert len(found) == 1, found
    return found[0]


def private_folders(place: Place) -> list[Path]:
    return list((place.folder / "run").glob("baton-program-*"))
