"""Returns GPU memory that libraries hold without using it to the driver.

PyTorch and CuPy keep freed memory for their next allocation. If sessions share a GPU and another session lacks memory,
this unused memory would be copied to the host like any other. So it is returned to the driver first: at the end of a
cell, and between cells when the worker asks. JAX has no call for this.

The interposer (`gpu-worker/interposer`), which such sessions load before all other libraries, requests it.
"""

from __future__ import annotations

import contextlib
import ctypes
import select
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


class GpuCache:
    """The freed GPU memory that the libraries of this session keep."""

    def __init__(self) -> None:
        loaded: Any = ctypes.CDLL(None)
        self._is_here = hasattr(loaded, "baton_gpu_trims")
        self._loaded = loaded
        self._descriptor = -1

    def end_cell(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called at the end of a cell's code. From the first GPU use on, `loop` receives the worker's requests."""
        if not self._is_here:
            return
        if self._descriptor < 0:
            self._descriptor = self._loaded.baton_gpu_trims()
            if self._descriptor >= 0:
                loop.add_reader(self._descriptor, self._trim)
        elif select.select([self._descriptor], [], [], 0)[0]:
            self._trim()

    def _trim(self) -> None:
        for give_back in (_trim_torch, _trim_cupy):
            with contextlib.suppress(Exception):  # the library is partly imported, or its context is broken
                give_back()
        self._loaded.baton_gpu_trimmed()


def _trim_torch() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _trim_cupy() -> None:
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()
