"""A notebook of the corpus that is saved, whose kernel ends, and that continues in a new kernel after a load, has the
same results as without that.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from differential.notebooks import FOLDER, Kernels, Notebook, Run, cell_shows, describe, differences, files, read
from end_to_end import Kernel, Service

NUMBER_OF_CELL = re.compile(r"(In|Out)\[\d+\]")
OF_THE_KERNEL = {
    "plain_autoreload": "has a function that %autoreload updates because its kernel loaded it before",
    "plain_display": "asks for Out of an earlier cell",
    "plain_hooks": "counts the cells of its kernel",
    "plain_kept_errors": "asks for the last error of an earlier cell",
    "plain_printers": "has formatters of IPython as variables, which are said not to be saved",
    "plain_registered": "uses a module that matplotlib had loaded for something else",
    "plain_reset": "clears the variables and results of its kernel",
    "plain_soup": "has tags that share a set with Beautiful Soup itself",
    "plain_underscores": "asks for the last results of its kernel",
    "torch_bound_anew": "deletes generators, which are said not to be saved",
    "widgets_media": "has widgets, which are said not to be saved",
    "widgets_values": "has widgets, which are said not to be saved",
}
"""Notebooks that need something that saved states do not contain."""
CORPUS = [read(path) for path in sorted((FOLDER / "corpus").glob("*.py")) if path.stem not in OF_THE_KERNEL]
if "BATON_TEST_EXAMPLES" not in os.environ:  # those that attach something to libraries, and a third of the others
    OFTEN = ("plain_", "pandas_registered", "jax_trees", "sympy_star")
    CORPUS = [one for number, one in enumerate(CORPUS) if one.name.startswith(OFTEN) or number % 3 == 0]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    service = Service.create()
    service.start_broker()
    yield service
    left = service.close()
    assert not left, f"Processes left behind: {left}"


@pytest.fixture(scope="module")
def _kernels(service: Service) -> Iterator[Kernels]:
    kernels = Kernels(service, {}, {})
    yield kernels
    kernels.end()


def run(kernel: Kernel, folder: Path, notebook: Notebook, before: Callable[[int], None]) -> Run:
    shown = []
    for number, cell in enumerate(notebook.cells):
        before(number)
        shown += cell_shows(kernel, number, cell)
    kernel.run("%reset -f out")
    state = describe(kernel) + files(folder)
    return Run(
        *([NUMBER_OF_CELL.sub(r"\1[#]", line.replace(str(folder), "")) for line in part] for part in (shown, state))
    )


@pytest.mark.parametrize("notebook", CORPUS, ids=lambda notebook: notebook.name)
def test_a_notebook_goes_on_in_the_next_kernel(kernels: Kernels, notebook: Notebook) -> None:
    at = random.Random(notebook.name).randrange(1, len(notebook.cells))
    said = []

    def run_in(number: int, kernel: Kernel, folder: Path) -> Run:
        def move(cell: int) -> None:
            if number == 1 and cell == at:
                said.append(kernel.run("%gpu_save halfway").ok().stderr)
                kernel.restart()
                said.append(kernel.run("%gpu_load halfway").ok().stderr)

        return run(kernel, folder, notebook, move)

    plain, found = kernels.each(notebook, run_in)
    lines = differences(plain.shown, found.shown) + differences(plain.state, found.state)
    assert not lines, "".join(said) + "\n".join(lines)
