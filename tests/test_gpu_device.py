"""With a real NVIDIA GPU: a `%%gpu` cell reaches it, and the notebook kernel beside it uses none of it.

Only libcuda is needed, which comes with the driver; no framework has to be installed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from end_to_end import Kernel, Service
from end_to_end.restricted import WITHOUT_USER_NAMESPACES

pytestmark = pytest.mark.gpu

COPY_ON_DEVICE = """
import ctypes

cuda = ctypes.CDLL("libcuda.so.1")


def call(function, *arguments):
    code = getattr(cuda, function)(*arguments)
    assert code == 0, f"{function} failed with {code}"


def there_and_back(data):
    device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(len(data)))
    call("cuMemcpyHtoD_v2", pointer, data, ctypes.c_size_t(len(data)))
    back = ctypes.create_string_buffer(len(data))
    call("cuMemcpyDtoH_v2", back, pointer, ctypes.c_size_t(len(data)))
    call("cuMemFree_v2", pointer)
    call("cuDevicePrimaryCtxRelease_v2", device)
    return back.raw
"""


def test_a_cell_copies_to_the_gpu_and_back(kernel: Kernel) -> None:
    kernel.run("data = bytes(range(256)) * 4096").ok()
    kernel.gpu(f"{COPY_ON_DEVICE}\nback = there_and_back(data)\ndel cuda").ok()
    assert kernel.evaluate("back == data") is True


def test_the_notebook_kernel_does_not_open_the_gpu(kernel: Kernel) -> None:
    kernel.gpu(f"{COPY_ON_DEVICE}\nback = there_and_back(b'x')\ndel cuda").ok()
    kernel.run("import os\nopened = [os.readlink(entry.path) for entry in os.scandir('/proc/self/fd')]").ok()
    assert kernel.evaluate("[path for path in opened if 'nvidia' in path]") == []


MANY = """
import ctypes
import functools

PART = 256 << 20
# What the driver gives and takes at a time.
PAGE = 2 << 20
LOOKED_AT = 4 << 10


@functools.cache
def cuda():
    library, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert library.cuInit(0) == 0
    assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert library.cuCtxSetCurrent(context) == 0
    return library


def call(name, *arguments):
    code = getattr(cuda(), name)(*arguments)
    assert code == 0, f"{name} failed with {code}"


def card_bytes():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return total.value


def allocate(size):
    address = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    return address.value


def fill(address, size, number):
    \"\"\"Each part with a number of its own.\"\"\"
    for part in range(size // PART):
        place = ctypes.c_uint64(address + part * PART)
        call("cuMemsetD32_v2", place, ctypes.c_uint32(number + part), ctypes.c_size_t(PART // 4))
    call("cuCtxSynchronize")


def read(address, size):
    found = ctypes.create_string_buffer(size)
    call("cuMemcpyDtoH_v2", found, ctypes.c_uint64(address), ctypes.c_size_t(size))
    return found.raw


def is_filled(address, size, number):
    \"\"\"By both ends of each part.\"\"\"
    for part in range(size // PART):
        expected = (number + part).to_bytes(4, "little") * (LOOKED_AT // 4)
        for place in (0, PART - LOOKED_AT):
            if read(address + part * PART + place, LOOKED_AT) != expected:
                return False
    return True


def is_left_there(address, size, pattern):
    \"\"\"By the beginning of each page.\"\"\"
    return any(pattern in read(place, LOOKED_AT) for place in range(address, address + size, PAGE))
"""
CARD_BYTES = "import card\nsize = card.card_bytes() * {percent} // 100 // card.PART * card.PART"


@pytest.fixture
def notebook(service: Service, new_kernel: Callable[..., Kernel]) -> Callable[[], Kernel]:
    return notebooks(service, new_kernel)


def notebooks(service: Service, new_kernel: Callable[..., Kernel], **settings: str) -> Callable[[], Kernel]:
    """On a worker with the default sandbox."""
    service.start_broker()
    service.start_worker(slots=2, **settings)
    assert "Sessions time-share this machine's GPU" in service.log("worker-0")
    folder = service.place.work / "gpu"
    folder.mkdir()
    (folder / "card.py").write_text(MANY)
    return lambda: service.kernel(new_kernel, folder=folder)


def test_two_notebooks_have_more_than_the_card_and_each_finds_it_as_it_left_it(notebook: Callable[[], Kernel]) -> None:
    kernels = [notebook(), notebook()]
    for number, kernel in enumerate(kernels):
        kernel.gpu(f"{CARD_BYTES.format(percent=55)}\naddress = card.allocate(size)").ok()
        kernel.gpu(f"card.fill(address, size, {1000 * number})").ok()
    for number, kernel in enumerate(kernels):
        kernel.gpu(f"right = card.is_filled(address, size, {1000 * number})").ok()
        assert kernel.evaluate("right") is True


def test_what_a_session_left_on_the_card_is_not_found_by_the_next(notebook: Callable[[], Kernel]) -> None:
    secret = 0x5EC12E75
    pattern = f"({secret}).to_bytes(4, 'little') * 16"
    first = notebook()
    first.gpu(f"{CARD_BYTES.format(percent=10)}\naddress = card.allocate(size)").ok()
    first.gpu(f"card.call('cuMemsetD32_v2', card.ctypes.c_uint64(address), {secret}, card.ctypes.c_size_t(size // 4))")
    first.gpu(f"seen = card.is_left_there(address, size, {pattern})").ok()
    assert first.evaluate("seen") is True
    first.shutdown()
    second = notebook()
    second.gpu(f"{CARD_BYTES.format(percent=90)}\naddress = card.allocate(size)").ok()
    second.gpu(f"seen = card.is_left_there(address, size, {pattern})").ok()
    assert second.evaluate("seen") is False


def test_a_session_under_landlock_copies_to_the_gpu_and_back(
    service: Service, new_kernel: Callable[..., Kernel]
) -> None:
    service.start_broker()
    service.start_worker(prefix=WITHOUT_USER_NAMESPACES, BATON_WORKER_SANDBOX="landlock")
    kernel = service.kernel(new_kernel)
    kernel.run("data = bytes(range(256)) * 4096").ok()
    kernel.gpu(f"{COPY_ON_DEVICE}\nback = there_and_back(data)\ndel cuda").ok()
    assert kernel.evaluate("back == data") is True


SHOWN = """
import os
import subprocess

import pynvml

address = card.allocate(64 << 20)
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
processes = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
by_pynvml = memory.total >> 20, memory.used >> 20, [(one.pid, one.usedGpuMemory >> 20) for one in processes]
mine = os.getpid()


def asked(what):
    command = ["nvidia-smi", f"--query-{what}", "--format=csv,noheader,nounits"]
    rows = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [list(map(int, row.split(","))) for row in rows]


((total, used),) = asked("gpu=memory.total,memory.used")
by_nvidia_smi = total, used, [tuple(row) for row in asked("compute-apps=pid,used_memory")]
del pynvml, gpu, memory, processes
"""


def test_a_session_is_shown_its_own_memory_and_processes(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    notebook = notebooks(service, new_kernel, BATON_WORKER_GPU_MEMORY="8GiB")
    first, second = notebook(), notebook()
    second.gpu("import card\naddress = card.allocate(512 << 20)").ok()
    first.gpu(f"import card\n{SHOWN}").ok()
    assert first.evaluate("by_pynvml") == first.evaluate("(8 << 10, 64, [(mine, 64)])")
    # The driver itself reports the memory of its processes, contexts included.
    assert first.evaluate("(*by_nvidia_smi[:2], [pid for pid, _ in by_nvidia_smi[2]])") == first.evaluate(
        "(8 << 10, 64, [mine])"
    )


FILL = """
import ctypes
import sys

cuda, free, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t(), ctypes.c_size_t()
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
for part in (1 << 30, 64 << 20, 4 << 20):
    while True:
        assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        if free.value < part + int(sys.argv[1]):
            break
        assert cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(part)) == 0
print("full", flush=True)
sys.stdin.read()
"""
LEFT_BYTES = 192 << 20
"""Less than a context takes."""


def test_sessions_take_turns_on_a_gpu_with_room_for_one_context(notebook: Callable[[], Kernel]) -> None:
    """Another program fills the GPU, so that a session without a cell has to leave it completely."""
    first, second = notebook(), notebook()
    hold = "import card\naddress = card.allocate(card.PART)\ncard.fill(address, card.PART, {})"
    first.gpu(hold.format(1)).ok()
    with subprocess.Popen(
        [sys.executable, "-c", FILL, str(LEFT_BYTES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        assert other.stdin
        assert other.stdout.readline() == "full\n"
        second.gpu(hold.format(2)).ok()
        for number, kernel in enumerate((first, second), 1):
            kernel.gpu(f"right = card.is_filled(address, card.PART, {number})").ok()
            assert kernel.evaluate("right") is True
        other.stdin.close()
