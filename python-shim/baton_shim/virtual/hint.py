"""What a student is told below an ordinary cell: that it computes on the CPU for long, or that it needs a GPU."""

from __future__ import annotations

import sys
import time
from typing import Any

LONG_SECONDS = 30.0
LONG = (
    "hint: 'cuda' is virtual in an ordinary cell, so this one computes on the CPU; "
    "write %%gpu on its first line to run it on a GPU"
)
NEEDS_GPU = "hint: {} computes on a GPU only; write %%gpu on the first line of this cell"
NOT_HERE = "hint: {} is not installed beside the notebook; a %%gpu cell finds it if the GPU machines have it"
# By the module of the exception that a library raises where it finds no GPU.
GPU_LIBRARIES = {"cupy": "CuPy", "cupy_backends": "CuPy", "numba.cuda": "Numba's CUDA", "cudf": "cuDF", "rmm": "cuDF"}
# Libraries that come to a machine for its GPU.
GPU_PACKAGES = frozenset("cupy cudf cuml cugraph rmm pycuda pynvml triton flash_attn bitsandbytes tensorrt".split())


class Watch:
    def __init__(self) -> None:
        self._began: float | None = None
        self._said = False
        self._here = True

    def begin(self, shell: Any) -> None:
        """In the notebook kernel; a session needs no hint."""
        shell.events.register("pre_run_cell", self._cell_begins)
        shell.events.register("post_run_cell", self._cell_ended)

    def _cell_begins(self, info: object = None) -> None:
        self._began = None if self._said else time.monotonic()
        self._here = True

    def cell_leaves(self) -> None:
        """It runs on a GPU machine."""
        self._began, self._here = None, False

    def _cell_ended(self, result: Any = None) -> None:
        self._began = None
        line = word_for(getattr(result, "error_in_exec", None)) if self._here else None
        if line is not None:
            say(line)

    def computing(self) -> None:
        """A tensor on the virtual GPU is being computed."""
        if self._began is not None and time.monotonic() - self._began > LONG_SECONDS:
            self._began, self._said = None, True
            say(LONG)


def word_for(error: object) -> str | None:
    """For an exception that says, in a library's own words, that there is no GPU."""
    if isinstance(error, ModuleNotFoundError) and error.name in GPU_PACKAGES:
        return NOT_HERE.format(error.name)
    module = type(error).__module__
    for prefix, library in GPU_LIBRARIES.items():
        if module == prefix or module.startswith(f"{prefix}."):
            return NEEDS_GPU.format(library)
    return None


def say(line: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"{line}\n")


WATCH = Watch()
