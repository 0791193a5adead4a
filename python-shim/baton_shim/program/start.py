"""What a plain Python program gets when it imports `baton`.

**Invariant:** no process is started and no broker is contacted before the first block or call.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from baton_shim.base.blocks import OnGpuMachine

if TYPE_CHECKING:
    from baton_shim.base.blocks import Kernel

OF_A_SESSION = "BATON_SESSION"
"""Every process of a session has this variable."""


def begin() -> Kernel | None:
    """The program's kernel; None in a Jupyter kernel that Baton did not start."""
    if os.environ.get(OF_A_SESSION):
        return OnGpuMachine()
    interactive = sys.modules.get("IPython.core.interactiveshell")
    if interactive is not None and interactive.InteractiveShell.initialized():
        return None
    try:
        from baton_shim.program.blocks import ProgramBlocks

        return ProgramBlocks()
    except Exception as error:  # an unknown version of IPython; the program itself may work
        return DoesNotFit(error)


class DoesNotFit:
    """The kernel if Baton does not fit: the first block or call reports the reason."""

    remote = True

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def not_transformed(self) -> str:
        from baton_shim.base.compat import UPDATE, does_not_fit

        why = f"no block or call of this program can run on a GPU ({type(self._error).__name__}: {self._error})"
        return f"{does_not_fit(('IPython',), [why])}. Nothing has run\n{UPDATE}"

    def options(self, given: object) -> None:
        """Accepts anything, because the first call raises."""

    def run(self, *of: object) -> NoReturn:
        raise RuntimeError(self.not_transformed) from self._error

    run_in_background = map = run
