"""What a student is told of the GPU: as the session's GPU is, and a hint where a library finds none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from baton_shim.surroundings.gpus import GpuModel
from baton_shim.virtual.gpu import KNOWN, UNKNOWN, Gpu
from baton_shim.virtual.hint import word_for

H100 = Gpu("NVIDIA H100 80GB HBM3", 85_045_739_520, (9, 0), 132)


@pytest.fixture
def after_a_cell_on_an_h100(virtual: None) -> Iterator[None]:
    GpuModel().apply(H100)
    yield
    KNOWN.gpu = UNKNOWN


@pytest.mark.usefixtures("after_a_cell_on_an_h100")
def test_the_virtual_gpu_is_like_the_one_that_was_last_seen() -> None:
    properties = torch.cuda.get_device_properties("cuda")
    assert torch.cuda.get_device_name() == properties.name == H100.name
    assert torch.cuda.get_device_capability() == (properties.major, properties.minor) == H100.capability
    assert properties.multi_processor_count == H100.multiprocessors
    before, total = torch.cuda.mem_get_info()
    assert total == properties.total_memory == H100.memory_bytes
    held = torch.ones(1 << 20, device="cuda")
    assert torch.cuda.mem_get_info() == (before - held.nbytes, total)
    assert GpuModel().look() == H100, "the next session hears of it, too"
    assert str(properties).startswith("_CudaDeviceProperties(name='NVIDIA H100 80GB HBM3', major=9, minor=0, total_mem")


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
    assert GpuModel().look() is None


# the module that defines the exception, what is said
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
    hint = "hint: cupy is not installed beside the notebook; a %%gpu cell finds it if the GPU machines have it"
    assert word_for(ModuleNotFoundError("No module named 'cupy'", name="cupy")) == hint
    assert word_for(ModuleNotFoundError("No module named 'cupi'", name="cupi")) is None
