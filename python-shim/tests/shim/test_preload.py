"""Libraries that a zygote loads for its forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Baton
LOAD = """
import os, sys
from baton_shim.session.preload import Preloaded
streams = sys.stdout, sys.stderr
sys.path.insert(0, sys.argv[1])
Preloaded().load("untidy")
assert (sys.stdout, sys.stderr) == streams
assert os.getcwd() == "/"
assert "get_ipython" not in dir(__builtins__)
"""
RETURN = """
import sys
from baton_shim.session.preload import Preloaded
sys.path.insert(0, sys.argv[1])
preloaded = Preloaded()
preloaded.load("course")
preloaded.load("course.late")
hidden = vars(preloaded._modules["course"])
assert "early" in hidden and "late" not in hidden, hidden.keys()
preloaded.watch()
import course
assert not hasattr(course, "late")
import course.late
assert (course.early.value, course.late.value) == (1, 2)
"""
SEARCH = """
import sys
from importlib.util import find_spec
from baton_shim.base import late
from baton_shim.session.preload import Preloaded
sys.path.insert(0, sys.argv[1])
preloaded = Preloaded()
preloaded.load("course")
preloaded.watch()
known = set(sys.modules)
assert find_spec("course").submodule_search_locations == [sys.argv[1] + "/course"]
assert set(sys.modules) == known
arrived = []
late.when_imported("course.early", lambda: arrived.append("course.early"))
import course
assert arrived == ["course.early"]
"""
VIRTUAL = """
from baton_shim.session import zygote
preloaded = zygote.load(["torch"], lambda line: None)
parts = {name for name in preloaded._modules if name.startswith("baton_shim.virtual.pytorch.")}
assert {"baton_shim.virtual.pytorch.answers", "baton_shim.virtual.pytorch.training"} <= parts, parts
"""


def test_virtual_cuda_is_loaded_completely_with_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    loaded = subprocess.run([sys.executable, "-c", VIRTUAL], capture_output=True, text=True, timeout=100)
    assert loaded.returncode == 0, loaded.stderr


def test_a_package_keeps_the_parts_that_always_return_with_it(tmp_path: Path) -> None:
    """Setting them again would write to the memory of each package."""
    (tmp_path / "course").mkdir()
    (tmp_path / "course/__init__.py").write_text("import course.early\n")
    (tmp_path / "course/early.py").write_text("value = 1\n")
    (tmp_path / "course/late.py").write_text("value = 2\n")
    loaded = subprocess.run([sys.executable, "-c", RETURN, tmp_path], capture_output=True, text=True, timeout=100)
    assert loaded.returncode == 0, loaded.stderr


def test_a_library_that_only_looks_for_another_does_not_load_it(tmp_path: Path) -> None:
    """As polars does with PyTorch, which is completed when it is imported."""
    (tmp_path / "course").mkdir()
    (tmp_path / "course/__init__.py").write_text("import course.early\n")
    (tmp_path / "course/early.py").touch()
    loaded = subprocess.run([sys.executable, "-c", SEARCH, tmp_path], capture_output=True, text=True, timeout=100)
    assert loaded.returncode == 0, loaded.stderr


@pytest.mark.parametrize("source", ["open('cache', 'w')", "import os; os.rmdir(os.getcwd())"])
def test_a_library_that_changes_its_folder_leaves_the_surroundings_as_they_were(tmp_path: Path, source: str) -> None:
    (tmp_path / "untidy.py").write_text(source)
    loaded = subprocess.run([sys.executable, "-c", LOAD, tmp_path], capture_output=True, text=True, timeout=100)
    assert loaded.returncode == 0, loaded.stderr


@pytest.mark.parametrize("zygote", [["matplotlib.pyplot"]], indirect=True)
def test_preloaded_pyplot_shows_figures_as_the_notebook_wants_them(baton: Baton) -> None:
    plot = "%%gpu\nimport matplotlib.pyplot as plt\nplt.plot([1])\nNone"
    shown = baton.run(plot).all("display_data")
    baton.run("%config InlineBackend.figure_format = 'svg'")
    shown += baton.run(plot).all("display_data")
    assert [sorted(one["data"]) for one in shown] == [["image/png", "text/plain"], ["image/svg+xml", "text/plain"]]
