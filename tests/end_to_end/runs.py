"""`baton run` and related commands, as a user calls them, and notebooks for them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from end_to_end.place import Place
from end_to_end.service import BINARY
from end_to_end.waiting import wait_until


def write(path: Path, *cells: str | nbformat.NotebookNode) -> Path:
    notebook = new_notebook(metadata={"mine": {"kept": True}})
    notebook.cells = [new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    nbformat.write(notebook, path)
    return path


def read(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def printed(cell: nbformat.NotebookNode) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


class Runs:
    """The command, as a user of a place calls it."""

    def __init__(self, place: Place, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.place = place
        self._environment = place.environment | environment

    def __call__(self, *arguments: str, command: str = "run") -> subprocess.CompletedProcess[str]:
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 300, "check": False}
        return subprocess.run([BINARY, command, *arguments], env=self._environment, cwd=self.folder, **options)

    def begin(
        self, *arguments: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        options: dict[str, Any] = {"stdout": stdout, "stderr": stderr, "text": True}
        return subprocess.Popen([BINARY, "run", *arguments], env=self._environment, cwd=self.folder, **options)

    def detach(self, *arguments: str) -> str:
        """Runs it detached; returns the job."""
        said = self("--detach", "--json", *arguments)
        assert said.returncode == 0, said.stderr
        job: str = json.loads(said.stdout)["job"]
        return job


HELD = "import pathlib, time\nprint('begun')\nwhile not pathlib.Path('{sign}').exists():\n    time.sleep(0.02)"


def held(place: Place, name: str) -> tuple[str, Path]:
    """A cell that waits for a file, and the file."""
    sign = place.signs / name
    return HELD.format(sign=sign), sign


def wait_for_log(run: Runs, job: str, text: str) -> None:
    wait_until(lambda: text in run(job, command="logs").stdout, f"{text!r} is in the log")


def fetched(run: Runs, job: str, name: str) -> nbformat.NotebookNode:
    said = run(job[-8:], "-o", name, command="fetch")
    assert said.returncode == 0, said.stderr
    return read(run.folder / name)


def row_of(run: Runs, job: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = json.loads(run("--json", command="jobs").stdout)
    return next(row for row in rows if row["job"].replace("-", "") == job)
