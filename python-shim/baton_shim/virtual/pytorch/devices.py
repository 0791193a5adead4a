"""The default device, and the mode in every thread."""

from __future__ import annotations

import threading
from typing import Any

import torch

from baton_shim.virtual.patches import Patches
from baton_shim.virtual.pytorch.labels import CUDA, names_cuda
from baton_shim.virtual.pytorch.mode import leave_here, mode_here, switch


def install(patches: Patches) -> None:
    install_default(patches)
    install_default_type(patches)
    install_threads(patches)


def install_default(patches: Patches) -> None:
    """torch would keep it in a mode below ours, which then would never hear of it."""
    if not hasattr(torch, "set_default_device"):
        return
    set_here = torch.set_default_device
    get_here = getattr(torch, "get_default_device", None)

    def set_default_device(device: Any) -> None:
        mode = mode_here()
        mode.default_cuda = device is not None and names_cuda(device)
        set_here(None if mode.default_cuda else device)

    def get_default_device() -> Any:
        return CUDA if mode_here().default_cuda else get_here() if get_here else torch.device("cpu")

    patches.set(torch, "set_default_device", set_default_device)
    if get_here is not None:
        patches.set(torch, "get_default_device", get_default_device)


def install_default_type(patches: Patches) -> None:
    """How one asked for a default device before there was one."""
    set_here = torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        set_here(name.replace("torch.cuda.", "torch."))
        mode_here().default_cuda = name.startswith("torch.cuda.")

    patches.set(torch, "set_default_tensor_type", set_default_tensor_type)


def install_threads(patches: Patches) -> None:
    begin_here = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def begin(self: Any) -> None:
        mode_here()
        try:
            begin_here(self)
        finally:
            leave_here()

    patches.set(threading.Thread, "_bootstrap_inner", begin)
    switch(True)
    mode_here()
    patches.on_undo(lambda: switch(False))
