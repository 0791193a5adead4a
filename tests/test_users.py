"""Which user runs which test."""

from __future__ import annotations

import itertools
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts/test_end_to_end.py"))
MARKS = ("root", "owner", "every_user", "alone")


@pytest.mark.parametrize("marks", list(itertools.product([False, True], repeat=len(MARKS))))
def test_root_and_an_ordinary_user_run_every_test(marks: tuple[bool, ...]) -> None:
    root, owner, every_user, alone = marks
    if alone and not root:
        return
    names = dict(zip(MARKS, marks, strict=True)) | {"gpu": False, "cuda_libraries": False}
    # These expressions mean the same in Python.
    as_root, by_itself, as_other = (eval(SCRIPT[name], names.copy()) for name in ("OF_ROOT", "ALONE", "OF_OTHERS"))
    assert as_root or by_itself or as_other
    assert as_root == ((root or owner or every_user) and not alone)
    assert by_itself == alone
    assert not (as_root and as_other) or every_user
    assert eval(SCRIPT["SELECTED"], names)


def test_an_ordinary_user_reads_what_only_root_can_test() -> None:
    user = ["unshare", "--user", "--map-user=1000"]
    command = [sys.executable, "-m", "pytest", "-q", "tests/test_slurm.py", "tests/test_secrets.py", "-m", "root"]
    said = subprocess.run([*user, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    for what in ("start slurmd", "start programs of another user"):
        assert f"NOT TESTED: only root can {what}" in said.stdout
