"""Libraries that a zygote loads for its forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("source", ["open('cache', 'w')", "import os; os.rmdir(os.getcwd())"])
def test_a_library_that_changes_its_folder_leaves_the_surroundings_as_they_were(tmp_path: Path, source: str) -> None:
    (tmp_path / "untidy.py").write_text(source)
    loaded = subprocess.run([sys.executable, "-c", LOAD, tmp_path], capture_output=True, text=True, timeout=100)
    assert loaded.returncode == 0, loaded.stderr
