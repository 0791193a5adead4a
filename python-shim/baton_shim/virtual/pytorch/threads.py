"""The threads whose torch calls go through the mode: the main one while something has the label, others always.

Cells run in the main thread, so that one must be fast. A mode cannot be added to another thread later, and the first
label may be created in any thread.

**Invariant:** the mode is below all other modes, whenever it is entered, so it sees calls as those have changed them.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import torch

from baton_shim.virtual.label import LABELS
from baton_shim.virtual.patches import Patches
from baton_shim.virtual.pytorch.mode import ACTIVE, VirtualCuda, mode_here, switch

CHANGES = hasattr(torch._C, "_pop_torch_function_stack")
"""Whether a thread's stack of modes can be changed. In older versions of torch, the mode is entered permanently."""


def install(patches: Patches) -> None:
    begin_here = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def begin(self: Any) -> None:
        mode_here().__enter__()
        try:
            begin_here(self)
        finally:
            mode_here().__exit__(None, None, None)  # torch may free objects later, which would need the interpreter

    patches.set(threading.Thread, "_bootstrap_inner", begin)
    switch(True)
    patches.on_undo(lambda: switch(False))
    if not (CHANGES and in_main()):
        mode_here().__enter__()
    if CHANGES:
        patches.on_undo(settle)
        patches.on_undo(LABELS.listen(changed))
        changed()


def in_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def changed() -> None:
    if in_main():
        settle()
    else:  # before the main thread continues
        ctypes.pythonapi.Py_AddPendingCall(_SETTLE, None)


def settle() -> None:
    """Enters or leaves the mode of the main thread, in which this is called."""
    if LABELS.present and VirtualCuda.__torch_function__ is ACTIVE:
        enter(mode_here())
    else:
        leave(mode_here())


def settled(_: object) -> int:
    settle()
    return 0


_SETTLE: Any = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(settled)


def enter(mode: VirtualCuda) -> None:
    modes = taken_out()
    put_back([mode, *(other for other in modes if other is not mode)])


def leave(mode: VirtualCuda) -> None:
    """During a call that passes through the mode, torch enters it again afterwards. It is then left the next time."""
    put_back([other for other in taken_out() if other is not mode])


def taken_out() -> list[Any]:
    """Removes all modes of this thread and returns them, the lowest first."""
    depth = torch._C._len_torch_function_stack()
    return [torch._C._pop_torch_function_stack() for _ in range(depth)][::-1]


def put_back(modes: list[Any]) -> None:
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)
