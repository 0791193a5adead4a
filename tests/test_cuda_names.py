"""Which functions of the CUDA driver libraries look up, read from their wheels."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parent.parent
ASKED = ROOT / "gpu-worker/interposer/src/library/sys/asked.txt"


def test_names_of_the_driver_s_functions_are_found_in_libraries_and_sources(tmp_path: Path) -> None:
    wheel = tmp_path / "some_library-2.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        # A part of a longer text is no name, and neither is a function of another library.
        archive.writestr("one.so", b"\0cuMemAlloc_v2\0cublasCreate\0no cuMemFree\0cuEventRecord_ptsz\0cuSolverThing\0")
        archive.writestr(
            "more.so.1", b"\0cuMemcpyHtoDAsync_v2_ptsz\0cuMemsetD8_v2\0cuLogicalEndpointCreate\0cuMemFrecudaFree\0"
        )
        archive.writestr("two.pyx", "cuGraphLaunch(graph); curandCreate()")
        archive.writestr("notes.txt", "cuCtxCreate")
    command = [sys.executable, ROOT / "scripts/cuda_names.py", wheel]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    asked = (
        "cuEventRecord_ptsz cuGraphLaunch cuLogicalEndpointCreate cuMemAlloc_v2 cuMemcpyHtoDAsync_v2_ptsz cuMemsetD8_v2"
    )
    assert printed.splitlines() == ["# some_library 2.1", *asked.split()]


def versions(pattern: str, path: Path) -> dict[str, Version]:
    found = re.findall(pattern, path.read_text(), re.MULTILINE)
    return {name.lower().replace("-", "_"): Version(version) for name, version in found}


def test_the_names_are_those_of_versions_at_least_as_new_as_the_pinned_ones() -> None:
    read = versions(r"^# (\S+) (\S+)$", ASKED)
    pinned = [versions(r"^([\w.-]+)==([^\s;]+)", path) for path in (ROOT / "requirements").rglob("*.txt")]
    both = [(name, pins[name]) for pins in pinned for name in read if name in pins]
    assert {"cuda_bindings", "cupy_cuda13x", "torch"} <= {name for name, _ in both}
    assert [(name, pin) for name, pin in both if pin > read[name]] == [], "Run `make cuda-names`"
