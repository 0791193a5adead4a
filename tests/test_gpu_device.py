"""With a real NVIDIA GPU: a `%%gpu` cell reaches it, and the notebook kernel beside it holds none of it.

Only libcuda is needed, which comes with the driver; no framework has to be installed.
"""

from __future__ import annotations

import pytest
from end_to_end import Kernel

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
