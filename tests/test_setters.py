"""Calls that set something in a library which Baton does not carry: one line names them and `%%both`."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from differential.notebooks import FOLDER
from end_to_end import Kernel, Service

ROOT = Path(__file__).parent.parent
LIBRARY = """
class Model:
    pass

def set_backend(name):
    print("set", name)

def register_format(ending, reader=None):
    pass

def set_seed(number):
    pass

def get_policy():
    pass

class registry:
    @staticmethod
    def set_default(name):
        pass
"""
CALLED = "hint: library.set_backend() of In[{}] applies only in the notebook; write %%both on "


@pytest.fixture
def kernel(service: Service, new_kernel: Callable[..., Kernel]) -> Kernel:
    started = service.kernel_with_library(new_kernel, LIBRARY)
    started.run("import library, numpy as np\nfrom library import register_format, Model").ok()
    return started


def hints(kernel: Kernel, body: str) -> list[str]:
    return [line for line in kernel.gpu(body).ok().stderr.splitlines() if line.startswith("hint: ")]


def test_a_cell_that_uses_the_library_names_the_call_once(kernel: Kernel) -> None:
    number = kernel.run("library.set_backend('fast')").ok().reply["execution_count"]
    assert hints(kernel, "x = 1") == []
    (line,) = hints(kernel, "library.Model()")
    assert line.startswith(CALLED.format(number))
    assert hints(kernel, "library.Model()") == []
    kernel.run("library.set_backend('fast')").ok()
    assert hints(kernel, "library.Model()") == []


def test_what_counts_as_a_use(kernel: Kernel) -> None:
    kernel.run("model = Model()\nregister_format('.img', reader=None)").ok()
    assert "hint: register_format() of In[" in hints(kernel, "type(model).__name__")[0]
    kernel.run("library.set_backend('a')").ok()
    assert len(hints(kernel, "def f():\n    import library\nf()")) == 1


def test_a_call_of_an_own_module_needs_no_hint(new_kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    """What it sets in its variables travels."""
    (tmp_path / "library.py").write_text("chosen = []\ndef set_backend(name): chosen.append(name)")
    kernel = new_kernel(folder=tmp_path)
    kernel.run("import library\nlibrary.set_backend('a')").ok()
    assert hints(kernel, "library.set_backend('b')") == []
    assert kernel.evaluate("library.chosen") == ["a", "b"]


def test_a_cell_for_both_needs_no_hint(kernel: Kernel) -> None:
    kernel.run("library.set_backend('a')").ok()
    kernel.run("%%both\nlibrary.set_backend('a')").ok()
    assert hints(kernel, "library.Model()") == []


def test_what_is_carried_or_sets_nothing_is_not_named(kernel: Kernel) -> None:
    kernel.run("np.random.seed(1)\nlibrary.set_seed(2)\nlibrary.get_policy()\nlibrary.registry.set_default('a')").ok()
    kernel.run("import torch\ntorch.set_printoptions(precision=2)\ntorch.set_warn_always(True)").ok()
    kernel.run("name = 'a'\nlibrary.set_backend(name)\nfor n in 'ab':\n    library.set_backend('c')").ok()
    kernel.run("def set_backend(name):\n    pass\nset_backend('a')").ok()
    assert hints(kernel, "library.Model(), np.ones(1), torch.ones(1)") == []


def notebooks() -> Iterator[tuple[str, list[str]]]:
    """The corpus and the examples: name and cells."""
    for path in sorted((FOLDER / "corpus").glob("*.py")):
        yield path.stem, path.read_text().split("# %%")
    for path in sorted((ROOT / "examples/notebooks").glob("*.ipynb")):
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        yield path.stem, ["".join(cell["source"]) for cell in cells]


def imported(cells: list[str]) -> dict[str, Any]:
    """The names that the notebook imports. Its other names are its own and do not count as a library."""
    namespace: dict[str, Any] = {}
    for cell in cells:
        try:
            statements = ast.parse(cell).body
        except SyntaxError:  # a magic
            continue
        for statement in statements:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                try:
                    exec(ast.unparse(statement), namespace)
                except ImportError:  # a module that the notebook writes first
                    continue
    return namespace


def test_at_most_one_notebook_in_thirty_is_told_something_false() -> None:
    """None of these notebooks sets anything that Baton does not carry, so each line would be wrong."""
    from baton_shim.notebook.setters import setters

    found, count, calls = [], 0, 0
    for name, cells in notebooks():
        namespace = imported(cells)
        count += 1
        for cell in cells:
            calls += cell.count("seed(") + cell.count(".set_") + cell.count("register_")
            found += [(name, setter.call) for setter in setters(cell, namespace)]
    assert count > 60
    assert calls > 50  # otherwise the notebooks prove nothing
    assert len({name for name, _ in found}) <= count / 30, found
