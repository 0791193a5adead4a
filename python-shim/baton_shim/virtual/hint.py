"""Hints below an ordinary cell: that it computes on the CPU for long, or needs something that is elsewhere."""

from __future__ import annotations

import math
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

LONG_SECONDS = 30.0
LONG = (
    "hint: 'cuda' is virtual in an ordinary cell, so this one computes on the CPU; "
    "write %%gpu on its first line to run it on a GPU"
)
NEEDS_GPU = "hint: {} computes on a GPU only; write %%gpu on the first line of this cell"
NO_CUDA = "hint: the CUDA libraries are on the GPU machines; write %%gpu on the first line of this cell"
OF_CUDA = re.compile(r"\blib(?:cuda|cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|nvrtc|nvJitLink)\w*\.so\b")
NOT_HERE = "hint: {} is not installed on this machine; a %%gpu cell finds it if the GPU machines have it"
PROGRAM = "nvidia-smi"
PROGRAM_NOT_HERE = f"hint: {PROGRAM} is on the GPU machines; write %%gpu on the first line of this cell"
PROGRAM_LINE = re.compile(rf"^\s*(?:\w+\s*=\s*)?!+\s*{PROGRAM}\b", re.MULTILINE)
# By the module of the exception that a library raises if it finds no GPU.
GPU_LIBRARIES = {"cupy": "CuPy", "cupy_backends": "CuPy", "numba.cuda": "Numba's CUDA", "cudf": "cuDF", "rmm": "cuDF"}
# Libraries that are installed only for a GPU.
GPU_PACKAGES = frozenset("cupy cudf cuml cugraph rmm pycuda pynvml triton flash_attn bitsandbytes tensorrt".split())


class Watch:
    """The time that the present cell has computed on the virtual GPU."""

    def __init__(self) -> None:
        self.seconds, self.limit = 0.0, math.inf
        self._said = False
        self._here = True

    def begin(self, shell: Any) -> None:
        """Called in the notebook kernel; a session needs no hints."""
        shell.events.register("pre_run_cell", self.cell_begins)
        shell.events.register("post_run_cell", self._cell_ended)

    def cell_begins(self, info: object = None) -> None:
        self.seconds, self.limit = 0.0, math.inf if self._said else LONG_SECONDS
        self._here = True

    def cell_leaves(self) -> None:
        """Called when the cell runs on a GPU machine."""
        self.limit, self._here = math.inf, False

    def _cell_ended(self, result: Any = None) -> None:
        self.limit = math.inf
        if not self._here:
            return
        line = word_for(getattr(result, "error_in_exec", None)) or word_about(getattr(result, "info", None))
        if line is not None:
            show(line)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Measures the time spent inside, on the virtual GPU."""
        began = perf_counter()
        yield
        self.computed(perf_counter() - began)

    def computed(self, seconds: float) -> None:
        """Adds the time of a call on the virtual GPU."""
        self.seconds += seconds
        if self.seconds > self.limit:
            self.computed_for_long()

    def computed_for_long(self) -> None:
        self.limit, self._said = math.inf, True
        show(LONG)


def word_for(error: object) -> str | None:
    """The hint for an exception about something missing: a GPU, in a library's own words, or an object of a cell."""
    if isinstance(error, ModuleNotFoundError) and error.name in GPU_PACKAGES:
        return NOT_HERE.format(error.name)
    if isinstance(error, (ImportError, OSError)) and OF_CUDA.search(str(error)):
        return NO_CUDA
    if isinstance(error, FileNotFoundError) and error.filename == PROGRAM:
        return PROGRAM_NOT_HERE
    state = sys.modules.get("baton_shim.state")  # loaded with the first %%gpu cell
    if state is not None and isinstance(error, state.StandInError):
        return f"hint: {error.hint}"
    module = type(error).__module__
    for prefix, library in GPU_LIBRARIES.items():
        if module == prefix or module.startswith(f"{prefix}."):
            return NEEDS_GPU.format(library)
    return None


def word_about(cell: Any) -> str | None:
    """The hint for a cell that ran a missing program; the shell reports that, not an exception."""
    ran = PROGRAM_LINE.search(getattr(cell, "raw_cell", None) or "")
    return PROGRAM_NOT_HERE if ran and shutil.which(PROGRAM) is None else None


def show(line: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"{line}\n")


WATCH = Watch()
