"""A student's own `.py` files: a `%%gpu` cell runs the source that the notebook has loaded, and sees a reload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from end_to_end import Kernel, Place


class Module:
    """A file beside the notebook that is edited; each version identifies itself."""

    def __init__(self, place: Place, name: str) -> None:
        self.name = name
        self.path = place.work / f"{name.replace('.', '/')}.py"
        self.path.parent.mkdir(exist_ok=True)
        self.version = 0
        self.edit()

    def edit(self) -> None:
        self.version += 1
        padding = "#" * self.version  # Python checks size and second of a source for its bytecode
        self.path.write_text(
            f"print('loading')\n{padding}\nVERSION = {self.version}\n"
            f"class Thing:\n    def version(self):\n        return {self.version}\n"
            f"def version():\n    return {self.version}\n"
        )


@pytest.fixture
def module(place: Place, request: pytest.FixtureRequest) -> Iterator[Module]:
    module = Module(place, f"own_{request.node.originalname}")
    yield module
    module.path.unlink()


def both(kernel: Kernel, expression: str) -> tuple[object, object]:
    """The values in the notebook, and in a `%%gpu` cell."""
    here = kernel.evaluate(expression)
    kernel.gpu(f"found = {expression}").ok()
    return here, kernel.evaluate("found")


def test_an_edit_is_seen_when_the_notebook_sees_it(kernel: Kernel, module: Module) -> None:
    kernel.run(f"import importlib, {module.name} as own; thing = own.Thing()").ok()
    assert both(kernel, "own.version(), thing.version()") == ((1, 1), (1, 1))
    module.edit()
    assert both(kernel, "own.version(), thing.version()") == ((1, 1), (1, 1))
    kernel.kill_session()  # a new one has never seen the first source
    assert both(kernel, "own.version(), thing.version(), isinstance(thing, own.Thing)") == ((1, 1, True), (1, 1, True))
    kernel.run("importlib.reload(own)").ok()
    assert both(kernel, "own.version(), own.Thing().version()") == ((2, 2), (2, 2))
    assert both(kernel, "thing.version(), isinstance(thing, own.Thing)") == ((1, False), (1, False))


def test_a_cell_may_reload(kernel: Kernel, module: Module) -> None:
    kernel.run(f"import importlib, {module.name} as own").ok()
    kernel.gpu("own.version()").ok()
    module.edit()
    kernel.gpu("importlib.reload(own)").ok()
    assert both(kernel, "own.version(), own.VERSION") == ((2, 2), (2, 2))


def test_a_module_that_a_cell_imported_is_the_notebooks(kernel: Kernel, module: Module) -> None:
    result = kernel.gpu(f"import {module.name} as own").ok()
    assert result.stdout == "loading\n"
    module.edit()
    assert both(kernel, "own.version()") == (1, 1)
    kernel.run("import importlib; importlib.reload(own)").ok()
    assert both(kernel, "own.version()") == (2, 2)


def test_loading_is_told_once(kernel: Kernel, module: Module) -> None:
    assert kernel.run(f"from {module.name} import version, Thing").ok().stdout == "loading\n"
    assert kernel.gpu("print(version(), Thing().version())").ok().stdout == "1 1\n"


@pytest.mark.parametrize("options", ["2", "2 --full"])
def test_autoreload(new_kernel: Callable[..., Kernel], place: Place, options: str) -> None:
    kernel = new_kernel()
    name = f"own_autoreload{len(options)}"
    module = Module(place, name)
    kernel.run(f"%load_ext autoreload\n%autoreload {options}\nimport {name} as own; thing = own.Thing()").ok()
    kernel.run(f"from {name} import version").ok()
    expression = "own.version(), version(), thing.version(), isinstance(thing, own.Thing)"
    assert both(kernel, expression) == ((1, 1, 1, True), (1, 1, 1, True))
    for expected in (2, 3):
        module.edit()
        assert kernel.gpu(expression).ok().value == f"({expected}, {expected}, {expected}, True)"
        assert both(kernel, expression) == ((expected, expected, expected, True),) * 2


def test_packages(kernel: Kernel, place: Place) -> None:
    module = Module(place, "own_package.part")
    (place.work / "own_package/__init__.py").write_text("from own_package.part import version\n")
    (place.work / "own_package/words.txt").write_text("hello")
    kernel.run("import own_package.part, importlib").ok()
    module.edit()
    kernel.kill_session()
    expression = "own_package.version(), own_package.part.Thing().version(), own_package.__path__ is not None"
    assert both(kernel, expression) == ((1, 1, True), (1, 1, True))
    read = "__import__('importlib.resources', fromlist=['x']).files(own_package).joinpath('words.txt').read_text()"
    assert both(kernel, read) == ("hello", "hello")
    kernel.run("importlib.reload(own_package.part)").ok()
    assert both(kernel, "own_package.version(), own_package.part.version()") == ((1, 2), (1, 2))


def test_a_module_from_elsewhere_travels_as_source(new_kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    (tmp_path / "far_away.py").write_text("class Thing:\n    name = 'thing'\n")
    kernel = new_kernel(PYTHONPATH=str(tmp_path))
    kernel.run("import far_away; thing = far_away.Thing()").ok()
    assert both(kernel, "thing.name, isinstance(thing, far_away.Thing)") == (("thing", True), ("thing", True))
