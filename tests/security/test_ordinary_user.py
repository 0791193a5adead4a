"""The sandbox of sessions of a worker that runs as an ordinary user, for tests that root runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from end_to_end.restricted import ROOT, as_ordinary_user

PARTS = {
    "test_sandbox.py": "(bubblewrap-forked or none) and not gpu",
    "test_sandboxed_cells.py": "forked and not landlock or network",
    "test_refusals.py": "",
}
"""Expressions that select tests. The others differ only in what does not depend on the user."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("file", PARTS)
def test_as_an_ordinary_user(file: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("An ordinary user runs these tests anyway")
    command = [sys.executable, "-m", "pytest", "-q", "-k", PARTS[file], f"tests/security/{file}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BATON_")}
    environment |= {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    said = subprocess.run(
        [*as_ordinary_user(tmp_path), *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stdout + said.stderr
