"""Virtual CUDA: `cuda` exists in a kernel without a GPU, so that only `%%gpu` cells need one.

When a kernel imports a library, missing features are added: torch's tensors "on cuda" are CPU tensors with a label,
JAX's CPU answers to the name of a GPU, and so on. There is one module for each library, loaded together with it.

**Invariant:** nothing is imported, and no library is changed, before other code imports the library. A session on a
machine with a GPU is left alone.
"""

from __future__ import annotations

import functools
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
    """Whether virtual CUDA is wanted and installed in this kernel."""

    def __init__(self) -> None:
        self.on = True
        """What the student wants; it is sent to the session."""
        self._session = False
        self.ask: Callable[[], bool] | None = None
        """Returns whether virtual CUDA is wanted if the environment does not say; called with the first library."""
        self._patches: dict[str, Patches] = {}

    def begin(self, session: bool = False) -> None:
        """Called once, at the start of a kernel."""
        self._session = session
        if not session:  # in a session, the environment is the worker's
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
        """Whether `cuda` is a real GPU in this kernel; never in the notebook kernel, even if the machine has one."""
        return (self._session or not self.on) and machine_has_gpu()

    @property
    def active(self) -> bool:
        return self.on and not self.real

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
        except Exception as error:  # an unknown version: continue as without virtual CUDA
            patches.undo()
            sys.stderr.write(
                f"warning: {library} gets no virtual GPU in this kernel ({type(error).__name__}: {error}); "
                "use 'cuda' in %%gpu cells only\n"
            )
        else:
            self._patches[library] = patches


MOST_GPUS = 32
"""Of NVIDIA's driver in one machine."""


@functools.cache
def machine_has_gpu() -> bool:
    """Does not use the driver, because a process that has used it can no longer fork."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1", "none")
    # A session under Landlock cannot list this folder.
    names = (*(f"/dev/nvidia{number}" for number in range(MOST_GPUS)), "/dev/dxg")
    return not hidden and any(map(os.path.exists, names))


SWITCH = Switch()
