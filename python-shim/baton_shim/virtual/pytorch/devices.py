"""The default device."""

from __future__ import annotations

from typing import Any

import torch

from baton_shim.virtual.label import label
from baton_shim.virtual.patches import Patches
from baton_shim.virtual.pytorch.labels import CUDA, names_cuda
from baton_shim.virtual.pytorch.mode import mode_here


def install(patches: Patches) -> None:
    install_default(patches)
    install_default_type(patches)


def install_default(patches: Patches) -> None:
    """torch would keep it in a mode below ours, which our mode would not notice."""
    if not hasattr(torch, "set_default_device"):
        return
    set_here = torch.set_default_device
    get_here = getattr(torch, "get_default_device", None)

    def set_default_device(device: Any) -> None:
        mode = mode_here()
        mode.default = label() if device is not None and names_cuda(device) else None
        set_here(None if mode.default_cuda else device)

    def get_default_device() -> Any:
        return CUDA if mode_here().default_cuda else get_here() if get_here else torch.device("cpu")

    patches.set(torch, "set_default_device", set_default_device)
    if get_here is not None:
        patches.set(torch, "get_default_device", get_default_device)


def install_default_type(patches: Patches) -> None:
    """The older way to set a default device."""
    set_here = torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        set_here(name.replace("torch.cuda.", "torch."))
        mode_here().default = label() if name.startswith("torch.cuda.") else None

    patches.set(torch, "set_default_tensor_type", set_default_tensor_type)
