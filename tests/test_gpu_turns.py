"""Notebooks that take turns on one GPU: a driver in host memory, whose card is too small for them together."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from end_to_end import Kernel, Service

ROOT = Path(__file__).parent.parent

# The tests' own home has no compiler.
ENVIRONMENT = dict(os.environ)

CARD_MIB = 64

# What a library for GPUs does, without its comfort.
LIBRARY = '''
"""Numbers on a GPU."""
import ctypes
import functools

module = ctypes.c_void_p()


@functools.cache
def cuda():
    """Opened where it is used: the notebook has none."""
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    driver.cuModuleLoadData(ctypes.byref(module), b"image")
    return driver


def call(name, *arguments):
    code = getattr(cuda(), name)(*arguments)
    if code:
        raise RuntimeError(f"{name}: {code}")


def word(value):
    return ctypes.c_uint64(value)


def allocate(count):
    address = word(0)
    call("cuMemAlloc_v2", ctypes.byref(address), word(8 * count))
    call("cuMemsetD8_v2", address, 0, word(8 * count))
    return address.value


def launch(name, *values):
    cuda()
    function = ctypes.c_void_p()
    call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    words = [word(value) for value in values]
    addresses = (ctypes.c_void_p * 4)(*[ctypes.addressof(one) for one in words])
    call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, addresses, None)


def values(address, count):
    numbers = (ctypes.c_uint64 * count)()
    call("cuMemcpyDtoH_v2", numbers, word(address), word(8 * count))
    return set(numbers)
'''


@pytest.fixture
def machine(service: Service) -> Path:
    """The folder of a driver and its card."""
    folder = service.place.folder / "machine"
    folder.mkdir()
    command = ["cargo", "run", "--quiet", "--locked", "-p", "baton-gpu-tests", "--bin", "gpu-machine", "--"]
    subprocess.run([*command, str(folder), str(CARD_MIB << 20)], cwd=ROOT, env=ENVIRONMENT, check=True)
    return folder


@pytest.fixture
def notebook(service: Service, machine: Path, new_kernel: Callable[..., Kernel]) -> Callable[[], Kernel]:
    service.start_broker()
    service.start_worker(
        slots=4, BATON_WORKER_GPU_TURNS="true", LD_LIBRARY_PATH=str(machine), BATON_TEST_GPU=str(machine / "card")
    )
    folder = service.place.work / "gpu"
    folder.mkdir()
    (folder / "card.py").write_text(LIBRARY)
    return lambda: service.kernel(new_kernel, folder=folder)


def test_each_notebook_has_most_of_the_card_and_finds_it_as_it_left_it(notebook: Callable[[], Kernel]) -> None:
    kernels = [notebook() for _ in range(2)]
    count = (40 << 20) // 8
    for number, kernel in enumerate(kernels, 1):
        kernel.gpu(
            f"import card\naddress = card.allocate({count})\ncard.launch('add', address, {count}, {number})"
        ).ok()
    for number, kernel in enumerate(kernels, 1):
        result = kernel.gpu(f"print(card.values(address, {count}))").ok()
        assert result.stdout == f"{{{number}}}\n"
        assert "had the GPU" in result.notices[-1]


def test_a_gpu_that_failed_is_said_and_the_next_cell_has_another_session(notebook: Callable[[], Kernel]) -> None:
    kernel = notebook()
    kernel.gpu("import card\nx = 5").ok()
    before = kernel.session_pid
    failed = kernel.gpu("x = 6\ncard.launch('touch_what_is_not_there')\ncard.call('cuCtxSynchronize')")
    assert failed.reply["ename"] == "RuntimeError"
    if not failed.stderr:  # the interposer notices a moment after the cell has: then the next cell's end says it
        failed = kernel.gpu("card.call('cuCtxSynchronize')")
    assert "CUDA error 700" in failed.stderr
    assert kernel.evaluate("x") == 6
    assert kernel.gpu("import card\nprint(x, card.values(card.allocate(8), 8))").ok().stdout == "6 {0}\n"
    assert kernel.session_pid != before
