"""Virtual CUDA: `cuda` is there in a kernel without a GPU, so that only `%%gpu` cells need one.

A library that a kernel imports is given what it lacks: torch's tensors "on cuda" are CPU tensors with a label, JAX's
CPU answers to the name of a GPU, and so on. One module for each library, loaded when the library is.

**Invariant:** nothing is imported, and nothing of a library is touched, before somebody imports it. A session on a
machine with a GPU is left alone.
"""

from __future__ import annotations

import functools
import glob
import importlib
import os
import sys
from collections.abc import Callable
from functools import partial

from baton_shim.base import late
from baton_shim.base.compat import VIRTUAL, require
from baton_shim.virtual.patches import Patches

VARIABLE = "BATON_VIRTUAL_CUDA"
LIBRARIES = {
    "torch": "baton_shim.virtual.pytorch",
    "jax": "baton_shim.virtual.jax",
    "tensorflow": "baton_shim.virtual.tensorflow",
}


class Switch:
    def __init__(self) -> None:
        self.on = True
        """What the student wants; it travels to the session."""
        self._session = False
        self.ask: Callable[[], bool] | None = None
        """Says whether virtual CUDA is wanted, where the environment does not; asked with the first library."""
        self._patches: dict[str, Patches] = {}

    def begin(self, session: bool = False) -> None:
        """Once, when a kernel starts."""
        self._session = session
        if not session:  # a worker's environment is not the student's
            self.on = os.environ.get(VARIABLE, "").lower() not in ("0", "false", "off", "no")
        for library in LIBRARIES:
            if library in sys.modules:
                self._arrived(library)
            else:
                late.when_imported(library, partial(self._arrived, library))

    def turn(self, on: bool) -> None:
        self.on = on
        for library in LIBRARIES:
            if not self.active and library in self._patches:
                self._patches.pop(library).undo()
            elif self.active and library in sys.modules:
                self._arrived(library)

    @property
    def real(self) -> bool:
        """Whether `cuda` is a real GPU in this kernel. In the notebook kernel it is not, also where one is near."""
        return (self._session or not self.on) and machine_has_gpu()

    @property
    def active(self) -> bool:
        return self.on and not self.real

    def works_for(self, library: str) -> bool:
        return library in self._patches

    def _arrived(self, library: str) -> None:
        if self.ask is not None:
            self.on, self.ask = self.on and self.ask(), None
        if not self.active or library in self._patches:
            return
        patches = Patches()
        try:
            require(VIRTUAL[library])
            install: Callable[[Patches], None] = importlib.import_module(LIBRARIES[library]).install
            install(patches)
        except Exception as error:  # a version that differs from all known ones: then as without virtual CUDA
            patches.undo()
            sys.stderr.write(
                f"warning: {library} gets no virtual GPU in this kernel ({type(error).__name__}: {error}); "
                "use 'cuda' in %%gpu cells only\n"
            )
        else:
            self._patches[library] = patches


@functools.cache
def machine_has_gpu() -> bool:
    """Asks no driver: a process that has asked can no longer fork."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1", "none")
    return not hidden and bool(glob.glob("/dev/nvidia[0-9]*") or os.path.exists("/dev/dxg"))


SWITCH = Switch()
