"""What a plain Python program gets when it imports `baton`.

**Invariant:** no process is started and no broker is asked before the first block or call.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from baton_shim.base.blocks import OnGpuMachine

if TYPE_CHECKING:
    from baton_shim.base.blocks import Kernel

OF_A_SESSION = "BATON_SESSION"
"""Every process of a session has this variable."""


def begin() -> Kernel | None:
    """None in a kernel that Baton did not start."""
    if os.environ.get(OF_A_SESSION):
        return OnGpuMachine()
    interactive = sys.modules.get("IPython.core.interactiveshell")
    if interactive is not None and interactive.InteractiveShell.initialized():
        return None
    from baton_shim.program.blocks import ProgramBlocks

    return ProgramBlocks()
