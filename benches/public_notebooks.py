"""Runs notebooks that other people wrote, and compares what their cells show with and without `%%gpu`.

    python benches/public_notebooks.py FOLDER_OR_FILE... > table.md

Each notebook runs in a copy of its folder: twice in a plain kernel, then with `%%gpu` on every cell, on the even cells,
and on the odd cells. Notebooks that name `cuda` expect a GPU, so their plain kernel is Baton's, too. Cells that show
different things in the two plain runs (times, random numbers) are not compared. Variables are compared once, after the
last cell. Notebooks should need nothing from the network.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from measuring import RESULTS, Kernel

# isort: split
from end_to_end import Service

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/differential"))

from notebooks import ENVIRONMENT, WAYS, Notebook, Way, cell_shows, describe, differences, plain

SEEDS = {"random": "seed(0)", "numpy": "random.seed(0)", "torch": "manual_seed(0)"}
SECONDS = 90
REFUSED = re.compile(r"^cell \d+: error: (Refused|StateRefused|GpuServiceError)\b")
IMAGE = re.compile(r'("image/\w+(?:\+xml)?": ")([^"]{40})[^"]*"')


Variables = dict[str, list[str]]
"""The description of each variable."""


@dataclass
class Run:
    shown: list[list[str]] = field(default_factory=list)
    """By cell."""
    seconds: list[float] = field(default_factory=list)
    variables: Variables = field(default_factory=dict)
    failure: str = ""
    """Why the run ended before the last cell."""

    def cell(self, number: int) -> list[str]:
        return self.shown[number] if number < len(self.shown) else ["not run"]


@dataclass
class Comparison:
    notebook: Notebook
    ratio: float
    """The time with `%%gpu` on every cell, in plain runs."""
    varying: set[int] = field(default_factory=set)
    """Cells that differ between plain runs."""
    differing: dict[int, tuple[Way, list[str]]] = field(default_factory=dict)
    """By cell, the first way in which it differs."""
    refused: set[int] = field(default_factory=set)
    variables: dict[str, tuple[Way, list[str]]] = field(default_factory=dict)
    slow: dict[int, tuple[Way, float, float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def row(self) -> str:
        cells = len(self.notebook.cells)
        counts = (
            cells,
            cells - len(self.differing) - len(self.varying),
            len(self.varying),
            len(self.differing) - len(self.refused),
            len(self.refused),
            len(self.variables),
            len(self.slow),
        )
        return f"| {self.notebook.name} | {' | '.join(map(str, counts))} | {self.ratio:.1f} |"


HEADER = (
    "| notebook | cells | equal | varying | differing | refused | variables differing | slow cells | time ratio |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def main() -> None:
    found = [path for argument in sys.argv[1:] for path in notebooks_of(Path(argument))]
    paths = [path for path in found if read(path).cells]
    service = Service.create()
    try:
        service.start_broker()
        service.start_worker(slots=2, BATON_WORKER_FILES="mirror", **ENVIRONMENT)
        compared = [compare(service, path) for path in paths]
    finally:
        left = service.close()
    table = "\n".join([HEADER, *(one.row for one in compared)])
    text = "\n\n".join([table, *(details(one) for one in compared if details(one))]) + "\n"
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "public_notebooks.md").write_text(text)
    sys.stdout.write(text)
    assert not left, left


def notebooks_of(path: Path) -> list[Path]:
    return sorted(path.rglob("*.ipynb")) if path.is_dir() else [path]


def read(path: Path) -> Notebook:
    cells = nbformat.read(path, as_version=4).cells
    return Notebook(path.stem, tuple(cell.source for cell in cells if cell.cell_type == "code" and cell.source.strip()))


def compare(service: Service, path: Path) -> Comparison:
    notebook = read(path)
    expected, again, *found = (run(service, path, notebook, way) for way in (plain, *WAYS))
    result = Comparison(notebook, sum(found[0].seconds) / sum(expected.seconds))
    result.varying = {number for number in range(len(notebook.cells)) if expected.cell(number) != again.cell(number)}
    for way, one in zip(WAYS[1:], found, strict=True):
        compare_cells(result, way, expected, one)
        if not (expected.failure or again.failure or one.failure):
            compare_variables(result, way, (expected.variables, again.variables), one.variables)
        for number, (before, seconds) in enumerate(zip(expected.seconds, one.seconds, strict=False)):
            if seconds > 2 * max(before, again.seconds[number]) + 0.3:
                result.slow.setdefault(number, (way, before, seconds))
    names = ("plain", "plain again", *(way.__name__ for way in WAYS[1:]))
    runs = zip(names, (expected, again, *found), strict=True)
    result.failures = [f"{name}: {one.failure}" for name, one in runs if one.failure]
    sys.stderr.write(f"{result.row}\n{details(result)}\n")  # what a long run has found so far
    return result


def compare_cells(result: Comparison, way: Way, expected: Run, found: Run) -> None:
    for number in set(range(len(result.notebook.cells))) - result.varying:
        shown, now = expected.cell(number), found.cell(number)
        if now != shown:
            result.differing.setdefault(number, (way, differences(list(map(short, shown)), list(map(short, now)))))
            if any(REFUSED.match(line) for line in now):
                result.refused.add(number)


def compare_variables(result: Comparison, way: Way, plain_runs: tuple[Variables, Variables], found: Variables) -> None:
    expected, again = plain_runs
    for name in expected.keys() | found.keys():
        lines, now = expected.get(name, []), found.get(name, [])
        if again.get(name, []) == lines != now:
            result.variables.setdefault(name, (way, differences(lines, now)))


def run(service: Service, path: Path, notebook: Notebook, way: Way) -> Run:
    folder = Path(tempfile.mkdtemp(prefix=f"{way.__name__} ", dir=service.place.work)) / "notebook"
    shutil.copytree(path.parent, folder, ignore=shutil.ignore_patterns("*.ipynb"))
    code = "\n".join(notebook.cells)
    kernel = Kernel.start(
        service.place,
        "python3" if way is plain and "cuda" not in code else "baton",
        folder=folder,
        transport="ipc",
        BATON_BROKER_ADDRESS=f"unix:{service.socket}",
        **ENVIRONMENT,
    )
    result = Run()
    try:
        seeds = [f"__import__('{library}').{call}" for library, call in SEEDS.items() if library in code]
        kernel.run("\n".join([*seeds, "None"]), store_history=False).ok()
        if way is not plain:
            kernel.run("%%gpu\npass", store_history=False).ok()
        for number, cell in enumerate(notebook.cells):
            begin = time.perf_counter()
            gpu = way(notebook, number)
            shown = cell_shows(kernel, number, cell, gpu=gpu, seconds=SECONDS, allow_stdin=False)
            result.seconds.append(time.perf_counter() - begin)
            result.shown.append([line.replace(str(folder), "/notebook") for line in shown])
        for line in describe(kernel):
            name = re.match(r"\w*", line)
            result.variables.setdefault(name.group() if name else "", []).append(line)
    except AssertionError as error:
        result.failure = f"cell {len(result.shown)}: {str(error)[:400]}"
    finally:
        kernel.shutdown()
        shutil.rmtree(folder.parent, ignore_errors=True)
    return result


def details(compared: Comparison) -> str:
    """Each difference of a notebook."""
    lines = [f"* {failure}" for failure in compared.failures]
    for number, (way, plain_seconds, seconds) in sorted(compared.slow.items()):
        lines.append(f"* cell {number} is slow with `{way.__name__}`: {plain_seconds:.2f} s plain, {seconds:.2f} s")
    for number, (way, shown) in sorted(compared.differing.items()):
        code = compared.notebook.cells[number]
        lines += [f"* cell {number}, `{way.__name__}`", "```python", code[:1000], "```", "```diff", *shown, "```"]
    for name, (way, shown) in sorted(compared.variables.items()):
        lines += [f"* variable `{name}`, `{way.__name__}`", "```diff", *shown[:12], "```"]
    return "\n".join([f"## {compared.notebook.name}", "", *lines]) if lines else ""


def short(line: str) -> str:
    return IMAGE.sub(r'\1\2..."', line)


if __name__ == "__main__":
    main()
