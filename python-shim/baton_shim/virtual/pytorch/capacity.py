"""Errors for tensors that are too large, in the words of a GPU."""

from __future__ import annotations

import re
from typing import Any

import torch

from baton_shim.virtual.gpu import KNOWN, UNKNOWN
from baton_shim.virtual.pytorch.labels import Tensor

_NOT_ALLOCATED = re.compile(r"DefaultCPUAllocator.* allocate (\d+) bytes", re.DOTALL)
OutOfMemoryError: Any = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError


def fitting(made: Any) -> Any:
    """Returns the tensor. Raises if it is larger than the GPU's memory, if that is known."""
    if KNOWN.gpu is not UNKNOWN and type(made) is Tensor and made.layout == torch.strided:
        size = made.numel() * made.element_size()
        if size > KNOWN.gpu.memory_bytes:
            raise out_of_memory(size)
    return made


def raise_in_words_of_a_gpu(error: RuntimeError) -> None:
    """Raises it for errors of the CPU's allocator; returns for others."""
    size = _NOT_ALLOCATED.search(str(error))
    if size is not None:
        raise out_of_memory(int(size[1])) from None


def out_of_memory(size: int) -> RuntimeError:
    tried, total = (f"{count / 2**30:.2f} GiB" for count in (size, KNOWN.gpu.memory_bytes))
    if size > KNOWN.gpu.memory_bytes:
        why = f"GPU 0 has a total capacity of {total}"
    else:
        why = (
            "An ordinary cell uses the memory of the notebook's machine, which has less\n"
            "hint: write %%gpu on the first line of this cell to run it on a GPU"
        )
    error: RuntimeError = OutOfMemoryError(f"CUDA out of memory. Tried to allocate {tried}. {why}")
    return error
