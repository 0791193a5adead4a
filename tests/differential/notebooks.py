"""Runs a notebook of the corpus in one way in a real kernel.

The corpus is a folder of Python files whose cells begin with `# %%`. The results of a run are compared as text: the
output of each cell, a description of every name afterwards (`description.py`, which runs in the notebook kernel), and
the files in the notebook's folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from end_to_end import Kernel, Service
from end_to_end.results import ESCAPES, Result, is_notice

FOLDER = Path(__file__).parent
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
FILE_OF_CELL = re.compile(r"/tmp/ipykernel_\d+/\d+\.py")
IN_PLACE = "# %%gpu"
WAITING = re.compile(r"^Waiting for .* of the results of .* from the GPU machine\n", re.MULTILINE)
# Gives a set of strings the same order in every process.
ENVIRONMENT = {"PYTHONHASHSEED": "0"}


@dataclass(frozen=True)
class Notebook:
    name: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    shown: list[str]
    state: list[str]


Way = Callable[[Notebook, int], bool]
Made = TypeVar("Made")


def plain(notebook: Notebook, cell: int) -> bool:
    return False


def every_cell(notebook: Notebook, cell: int) -> bool:
    return True


def even_cells(notebook: Notebook, cell: int) -> bool:
    return cell % 2 == 0


def odd_cells(notebook: Notebook, cell: int) -> bool:
    return cell % 2 == 1


WAYS: dict[Way, dict[str, str]] = {
    plain: {},
    every_cell: {},
    even_cells: {},
    odd_cells: {"BATON_CELL_BYTES": "0"},  # all memory that may be deferred is
}
"""Each with variables of the kernel's environment."""


def read(path: Path) -> Notebook:
    _, *cells = re.split(r"^# %%\n", path.read_text(), flags=re.MULTILINE)
    return Notebook(path.stem, tuple(cell.strip() for cell in cells))


class Kernels:
    """Kernels that run the same notebooks in different ways. They are emptied between notebooks of the same library."""

    def __init__(self, service: Service, *environments: dict[str, str]) -> None:
        """`environments`: what each kernel has of its own."""
        self._service = service
        self._environments = environments
        self._kernels: list[tuple[Kernel, Path]] = []
        self._library = ""

    def each(self, notebook: Notebook, act: Callable[[int, Kernel, Path], Made]) -> list[Made]:
        """What `act` returns for each kernel: it gets the kernel's number, the kernel, and its folder."""
        library = notebook.name.partition("_")[0]
        if library != self._library:
            self.end()
        with ThreadPoolExecutor(len(self._environments)) as pool:
            if self._kernels:
                list(pool.map(lambda at: empty(at[0]), self._kernels))
            else:
                self._library = library
                self._kernels = list(pool.map(self._start, self._environments))
            return list(pool.map(lambda number: act(number, *self._kernels[number]), range(len(self._kernels))))

    def _start(self, environment: dict[str, str]) -> tuple[Kernel, Path]:
        place = self._service.place
        folder = Path(tempfile.mkdtemp(prefix=f"{self._library} ", dir=place.work))
        address = {"BATON_BROKER_ADDRESS": f"unix:{self._service.socket}"}
        return Kernel.start(place, folder=folder, **ENVIRONMENT, **address, **environment), folder

    def end(self) -> None:
        for kernel, _ in self._kernels:
            kernel.shutdown()
        self._kernels = []


def empty(kernel: Kernel) -> None:
    """Without the second line, each look for garbage in the objects of large libraries takes a second."""
    kernel.empty()
    kernel.run("__import__('gc').freeze()", silent=True)


def run(kernel: Kernel, folder: Path, notebook: Notebook, way: Way) -> Run:
    cells = enumerate(notebook.cells)
    shown = [line for number, cell in cells for line in cell_shows(kernel, number, cell, gpu=way(notebook, number))]
    state = describe(kernel) + files(folder)
    return Run(*([line.replace(str(folder), "/notebook") for line in lines] for lines in (shown, state)))


def cell_shows(kernel: Kernel, number: int, cell: str, *, gpu: bool = False, **options: Any) -> list[str]:
    # A line that a traceback shows in place of the magic's line. Another magic must stay in the first line.
    in_place = "" if cell.startswith("%%") else f"{IN_PLACE}\n"
    code = f"%%gpu\n{cell}" if gpu else in_place + cell
    shown = visible(kernel.run(code, **options))
    return [f"cell {number}: {text}".replace(IN_PLACE, "%%gpu") for text in shown]


def describe(kernel: Kernel) -> list[str]:
    path = str(FOLDER / "description.py")
    code = f"print('\\n'.join(__import__('runpy').run_path({path!r})['describe'](globals())))"
    return kernel.run(code, store_history=False).ok().stdout.splitlines()


def files(folder: Path) -> list[str]:
    """The files in the notebook's folder, except those that each interpreter keeps for itself."""
    paths = [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts]
    return [f"{path.relative_to(folder)}: {content(path)}" for path in paths]


def content(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    if path.is_dir():
        return "folder"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{path.stat().st_mode & 0o777:o}, {path.stat().st_size} bytes, {digest[:16]}"


def visible(result: Result) -> list[str]:
    """What the student sees, without Baton's own lines and without addresses.

    Timers decide when a kernel sends what is buffered in a stream, so the order of two streams is left out.
    """
    shown: list[tuple[str, str]] = []
    streams: dict[str, str] = {}
    for message in result.published:
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            text = WAITING.sub("", content["text"])
            if text:
                streams[content["name"]] = streams.get(content["name"], "") + text
            continue
        if kind == "error":
            text = ESCAPES.sub("", "\n".join(content["traceback"])) or content["ename"]
        elif kind in ("display_data", "update_display_data", "execute_result") and not is_notice(content):
            text = json.dumps(content["data"], sort_keys=True)
        else:
            continue
        shown += [*sorted(streams.items()), (kind, text)]
        streams.clear()
    shown += sorted(streams.items())
    return [FILE_OF_CELL.sub("cell.py", ADDRESS.sub("0x...", f"{kind}: {text}")) for kind, text in shown]


def differences(expected: list[str], found: list[str]) -> list[str]:
    import difflib

    lines = difflib.unified_diff(expected, found, "plain", "with %%gpu", lineterm="", n=1)
    return [line if len(line) < 300 else f"{line[:300]}..." for line in lines]


__all__: list[Any] = ["Kernels", "Notebook", "Run", "cell_shows", "describe", "differences", "files", "read", "run"]
