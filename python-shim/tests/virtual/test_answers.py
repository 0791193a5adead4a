"""What a student sees of the GPU: the properties of the session's GPU, and a hint if a library finds none."""

from __future__ import annotations

import gc
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import IPython.core.interactiveshell  # noqa: F401 (as in any kernel)
import pytest
import torch
from baton_shim.base.gpu_facts import ASKING
from baton_shim.state import StandInError
from baton_shim.surroundings.gpus import give_gpu_model, gpu_model
from baton_shim.surroundings.settings import Settings
from baton_shim.virtual import hint
from baton_shim.virtual.gpu import KNOWN, TYPICAL, UNKNOWN, Gpu
from baton_shim.virtual.hint import WATCH, word_about, word_for

GPU_SETTING = "baton_shim.virtual.gpu"
H100 = Gpu("NVIDIA H100 80GB HBM3", 85_045_739_520, (9, 0), 132)


@pytest.fixture
def after_a_cell_on_an_h100(virtual: None) -> Iterator[None]:
    give_gpu_model(None, H100)
    yield
    KNOWN.gpu = UNKNOWN


@pytest.mark.usefixtures("after_a_cell_on_an_h100")
def test_the_virtual_gpu_is_like_the_one_that_was_last_seen() -> None:
    properties = torch.cuda.get_device_properties("cuda")
    assert torch.cuda.get_device_name() == properties.name == H100.name
    assert torch.cuda.get_device_capability() == (properties.major, properties.minor) == H100.capability
    assert properties.multi_processor_count == H100.multiprocessors
    gc.collect()  # tensors of earlier tests
    before, total = torch.cuda.mem_get_info()
    assert total == properties.total_memory == H100.memory_bytes
    held = torch.ones(1 << 20, device="cuda")
    assert torch.cuda.mem_get_info() == (before - held.nbytes, total)
    assert gpu_model(None) == H100, "the next session hears of it, too"
    assert str(properties).startswith("_CudaDeviceProperties(name='NVIDIA H100 80GB HBM3', major=9, minor=0, total_mem")


DRIVER = """
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return INIT; }
int cuDeviceGet(int *device, int ordinal) { *device = 7; return ordinal; }
int cuDeviceGetName(char *name, int room, int device) { strncpy(name, "NVIDIA T4", room); return device != 7; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)15 << 30; return device != 7; }
int cuDeviceGetUuid(char *uuid, int device) { memcpy(uuid, "0123456789abcdef", 16); return device != 7; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 7 : attribute == 76 ? 5 : attribute == 16 ? 40 : attribute;
    return device != 7;
}
"""


def build_driver(folder: Path, code: int) -> None:
    """Its `cuInit` answers `code`."""
    driver = ["-x", "c", "-", f"-DINIT={code}", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1")]
    subprocess.run(["gcc", *driver], input=DRIVER, text=True, check=True)


@pytest.mark.parametrize("code", [0, 100])
def test_a_session_knows_its_gpu_before_anything_there_uses_it(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_driver(tmp_path, code)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr(KNOWN, "gpu", UNKNOWN)
    settings = Settings()
    ASKING.begin()
    assert ASKING._process is not None
    assert ASKING._process.wait(60) == (1 if code else 0)
    settings.settle(rebuilt=True)  # the notebook's settings have arrived
    changes = settings.look() or {}
    assert (GPU_SETTING in changes) is (code == 0), "the notebook hears of it"
    settings.commit(lambda undo: None)
    assert GPU_SETTING not in (settings.look() or {})
    seen = gpu_model(None)
    if code:
        assert seen is None
        return
    assert seen is not None
    assert seen[:4] == ("NVIDIA T4", 15 << 30, (7, 5), 40)
    assert (seen.details["warp_size"], seen.details["gcnArchName"]) == (10, "NVIDIA T4")
    assert seen.details["uuid"] == "30313233-3435-3637-3839-616263646566"
    assert seen.details.keys() == TYPICAL.keys()


def test_a_trial_session_says_why_the_driver_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    for code, expected in [(304, "cuInit answered 304"), (0, None)]:
        build_driver(tmp_path, code)
        ASKING.begin()
        assert ASKING.error() == expected
    assert ASKING.error() is None, "nothing was asked"


@pytest.mark.usefixtures("after_a_cell_on_an_h100")
def test_a_tensor_that_is_larger_than_the_gpu_does_not_fit() -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 90.00 GiB. GPU 0 has a total .* of 79.21 GiB"):
        torch.empty(90 << 30, dtype=torch.uint8, device="cuda")


@pytest.mark.usefixtures("virtual")
@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.cuda.graphs.CUDAGraph(),
        lambda: torch.cuda.utilization(),
        lambda: torch.cuda.memory._record_memory_history(),
        lambda: torch.nn.parallel.comm.broadcast(torch.ones(1, device="cuda"), [0]),
    ],
)
def test_what_only_a_gpu_has_is_said_to_need_one(call: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match=r"needs a real GPU\nhint: use it in a %%gpu cell"):
        call()


def test_before_that_nothing_is_said_to_a_session() -> None:
    assert gpu_model(None) is None


# the module that defines the exception, and the hint
HINTS = {
    "cupy_backends.cuda.api.runtime": "hint: CuPy computes on a GPU only; write %%gpu on the first line of this cell",
    "cupy.cuda.compiler": "hint: CuPy computes on a GPU only; write %%gpu on the first line of this cell",
    "numba.cuda.cudadrv.error": "hint: Numba's CUDA computes on a GPU only; write %%gpu on the first line of this cell",
    "cudf.errors": "hint: cuDF computes on a GPU only; write %%gpu on the first line of this cell",
    "cupyx_of_the_student": None,
    "numba.core.errors": None,
}


@pytest.mark.parametrize("module", HINTS)
def test_an_error_of_a_library_that_finds_no_gpu_gets_a_hint(module: str) -> None:
    error: type[Exception] = type("CudaSupportError", (RuntimeError,), {"__module__": module})
    assert word_for(error("no CUDA-capable device is detected")) == HINTS[module]


def test_a_library_that_only_the_gpu_machines_have_gets_a_hint() -> None:
    hint = "hint: cupy is not installed on this machine; a %%gpu cell finds it if the GPU machines have it"
    assert word_for(ModuleNotFoundError("No module named 'cupy'", name="cupy")) == hint
    assert word_for(ModuleNotFoundError("No module named 'cupi'", name="cupi")) is None


def test_what_stayed_elsewhere_comes_with_its_hint() -> None:
    assert word_for(StandInError("'steps' is a generator", "make it here")) == "hint: make it here"


def test_a_library_that_finds_no_part_of_cuda_gets_a_hint() -> None:
    said = "hint: the CUDA libraries are on the GPU machines; write %%gpu on the first line of this cell"
    assert word_for(ImportError('Failure finding "libcufft.so.12 or libcufft.so.11": No such file')) == said
    assert word_for(OSError("libnvrtc.so.13: cannot open shared object file: No such file or directory")) == said
    assert word_for(ImportError("libcurl.so.4: cannot open shared object file: No such file or directory")) is None


# the output of a cell, and whether the program was missing
PROGRAMS = {
    "!nvidia-smi": True,
    "import torch\n  ! nvidia-smi --list-gpus": True,
    "lines = !nvidia-smi": True,
    "# !nvidia-smi": False,
    "print('!nvidia-smi')": False,
    "!nvidia-smith": False,
    "a != nvidia": False,
}


@pytest.mark.parametrize("cell", PROGRAMS)
def test_nvidia_smi_gets_a_hint_where_it_is_missing(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "hint: nvidia-smi is on the GPU machines; write %%gpu on the first line of this cell"
    monkeypatch.setattr(shutil, "which", lambda program: None)
    assert word_about(SimpleNamespace(raw_cell=cell)) == (said if PROGRAMS[cell] else None)
    assert word_for(FileNotFoundError(2, "No such file", "nvidia-smi")) == said
    monkeypatch.setattr(shutil, "which", lambda program: "/usr/bin/nvidia-smi")
    assert word_about(SimpleNamespace(raw_cell=cell)) is None


def product(device: str) -> Callable[[], object]:
    x = torch.ones(900, 900, device=device)
    return lambda: x @ x


def backward_pass() -> Callable[[], object]:
    x = torch.ones(900, 900, device="cuda", requires_grad=True)
    total = (x @ x).sum()
    return lambda: torch.autograd.grad(total, x, retain_graph=True)


def layer() -> Callable[[], object]:
    net, x = torch.nn.GRU(8, 8).cuda(), torch.ones(3000, 1, 8, device="cuda")
    return lambda: net(x)


# starts the work, and whether it is on the virtual GPU
LONG_WORK: dict[str, tuple[Callable[[], Callable[[], object]], bool]] = {
    "a call": (lambda: product("cuda"), True),
    "a backward pass": (backward_pass, True),
    "a layer": (layer, True),
    "on the CPU": (lambda: product("cpu"), False),
}


@pytest.mark.usefixtures("virtual")
@pytest.mark.parametrize("case", LONG_WORK)
def test_long_work_on_the_virtual_gpu_gets_a_hint_once(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin, there = LONG_WORK[case]
    work = begin()
    monkeypatch.setattr(hint, "LONG_SECONDS", 0.004)
    monkeypatch.setattr(WATCH, "_said", False)
    WATCH.cell_begins()
    for _ in range(3):
        work()
    assert capsys.readouterr().err.count("write %%gpu on its first line") == int(there)
