"""PyTorch and JAX on the CPU, as the tests install them, and the stand-ins for torch's CUDA libraries."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

STUBS = Path(__file__).parent.parent / "scripts/stub_cuda.py"
ON_THE_CPU = """
import torch
weight = torch.ones(2, 2, requires_grad=True)
(weight @ torch.ones(2)).sum().backward()
assert weight.grad.tolist() == [[1, 1], [1, 1]]
assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
try:
    torch.ones(1).cuda()
except RuntimeError as error:
    print(error)
"""


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)


def test_torch_computes_on_the_cpu_and_says_quietly_that_there_is_no_gpu() -> None:
    done = python("-W", "error", "-c", ON_THE_CPU)
    assert (done.stdout, done.stderr) == ("No CUDA GPUs are available\n", "")


def test_jax_computes_on_the_cpu() -> None:
    done = python("-c", "import jax; print(jax.numpy.arange(3).sum(), jax.default_backend())", JAX_PLATFORMS="cpu")
    assert done.stdout == "3 cpu\n", done.stderr


def test_only_packages_of_cuda_are_left_out() -> None:
    done = python("-m", "pip", "check", "--disable-pip-version-check")
    left_out = [line for line in done.stdout.splitlines() if "which is not installed" in line]
    assert all(line.startswith("torch ") for line in left_out), done.stdout
    names = {line.split()[3].rstrip(",").partition("-")[0] for line in left_out}
    assert names <= {"cuda", "nvidia", "triton"}, done.stdout
    assert len(left_out) == len(done.stdout.splitlines()), done.stdout
    assert len(left_out) < len(requires("torch") or ())


# library, function, expected message
NEW: dict[str, tuple[str, str, str]] = {
    "library": ("libwarp.so.1", "warpFold", "it wants libwarp.so.1"),
    "function": ("libnccl.so.2", "warpFold", "undefined symbol: warpFold"),
}


@pytest.mark.parametrize("case", NEW)
def test_a_torch_that_wants_something_unknown_is_named(tmp_path: Path, case: str) -> None:
    library, function, said = NEW[case]
    make_torch(tmp_path, library, function)
    done = python(str(STUBS), PYTHONPATH=str(tmp_path), PATH="/usr/bin:/bin")
    assert done.returncode == 1
    assert said in done.stderr
    assert "hint: " in done.stderr


def test_a_torch_that_wants_what_is_known_gets_it(tmp_path: Path) -> None:
    torch = make_torch(tmp_path, "libnccl.so.2", "ncclFold")
    for _ in range(2):
        done = python(str(STUBS), PYTHONPATH=str(tmp_path), PATH="/usr/bin:/bin")
        assert done.returncode == 0, done.stderr
        assert "1 CUDA libraries" in done.stdout
    assert (torch / "lib/libnccl.so.2").exists()


def make_torch(folder: Path, library: str, function: str) -> Path:
    """A package of that name whose library needs a function of another library that lacks it."""
    torch, about = folder / "torch", folder / "torch-99.dist-info"
    (torch / "lib").mkdir(parents=True)
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 99\n")
    (about / "RECORD").write_text("torch/__init__.py,,\ntorch/_C.so,,\n")
    (torch / "__init__.py").write_text(IMPORTED)
    other = torch / "lib" / library
    compile_library(other, f"int {function}(void) {{ return 0; }}")
    uses = f"int {function}(void); int use(void) {{ return {function}(); }}"
    compile_library(torch / "_C.so", uses, str(other), "-Wl,-rpath,$ORIGIN/lib")
    other.unlink()
    return torch


IMPORTED = """
import ctypes, os, pathlib
ctypes.CDLL(str(pathlib.Path(__file__).with_name("_C.so")), os.RTLD_NOW)
class ones:
    def __init__(self, *shape): pass
    def __matmul__(self, other): return self
    def tolist(self): return [2, 2]
class cuda:
    is_available = staticmethod(lambda: False)
"""


def compile_library(path: Path, source: str, *arguments: str) -> None:
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", *arguments]
    command += [f"-Wl,-soname,{path.name}", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
