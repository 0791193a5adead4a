"""Which functions of the CUDA driver libraries look up, read from their wheels."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_names_of_the_driver_s_functions_are_found_in_libraries_and_sources(tmp_path: Path) -> None:
    wheel = tmp_path / "some_library-2.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        # A part of a longer text is no name, and neither is a function of another library.
        archive.writestr("one.so", b"\0cuMemAlloc_v2\0cublasCreate\0no cuMemFree\0cuEventRecord_ptsz\0cuSolverThing\0")
        archive.writestr("two.pyx", "cuGraphLaunch(graph); curandCreate()")
        archive.writestr("notes.txt", "cuCtxCreate")
    command = [sys.executable, ROOT / "scripts/cuda_names.py", wheel]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert printed.splitlines() == ["# some_library 2.1", "cuEventRecord_ptsz", "cuGraphLaunch", "cuMemAlloc_v2"]
