"""Files and pickles: a labelled tensor is written as one of `cuda:0`, and what was written as such is labelled.

So a file is the one that a GPU machine would write, and `map_location` means what it always means.
"""

from __future__ import annotations

from typing import Any

import torch

from baton_shim.virtual import LABEL
from baton_shim.virtual.patches import Patches
from baton_shim.virtual.pytorch.labels import Tensor, names_cuda, on_cuda, put

_BEFORE_CPU = 5  # torch asks its own for the CPU at 10, for CUDA at 20


def install(patches: Patches) -> None:
    torch.serialization.register_package(_BEFORE_CPU, location_of, restore)
    registry = torch.serialization._package_registry
    patches.on_undo(lambda: registry.remove((_BEFORE_CPU, location_of, restore)))
    rebuild_here = torch._utils._rebuild_tensor

    def rebuild(storage: Any, *form: Any) -> Any:
        made = rebuild_here(storage, *form)
        return put(made, True) if location_of(storage) else made

    patches.set(torch._utils, "_rebuild_tensor", rebuild)
    state_here = torch._utils._get_obj_state

    def state_of(obj: Any) -> Any:
        """torch asks it of every tensor that it pickles. The label becomes the storage's location."""
        state = state_here(obj)
        if not isinstance(obj, Tensor) or obj.layout != torch.strided or not isinstance(state, dict):
            return state
        mark(untyped(obj.untyped_storage()), on_cuda(obj))
        return {name: value for name, value in state.items() if name != LABEL}

    patches.set(torch._utils, "_get_obj_state", state_of)


def mark(storage: Any, cuda: bool) -> None:
    if cuda or hasattr(storage, LABEL):
        setattr(storage, LABEL, cuda)


def untyped(storage: Any) -> Any:
    return getattr(storage, "_untyped_storage", storage)


def location_of(storage: Any) -> str | None:
    return "cuda:0" if getattr(untyped(storage), LABEL, False) else None


def restore(storage: Any, location: str) -> Any:
    if not isinstance(location, str) or not location.startswith("cuda"):
        return None
    names_cuda(location)
    with torch._C.DisableTorchFunction():
        if untyped(storage).device.type == "cpu":
            setattr(untyped(storage), LABEL, True)
    return storage
