"""Files and pickles: a labelled tensor is written as one on `cuda:0`, and tensors on `cuda` are labelled when read.

So the files are those that a GPU machine would write, and `map_location` has its usual meaning.
"""

from __future__ import annotations

from typing import Any

import torch

from baton_shim.base.storages import untyped
from baton_shim.virtual.label import LABEL, label
from baton_shim.virtual.patches import Patches
from baton_shim.virtual.pytorch.labels import CUDA, Tensor, names_cuda, on_cuda, put

_BEFORE_CPU = 5  # torch's own tagger for the CPU is at 10, for CUDA at 20


def install(patches: Patches) -> None:
    torch.serialization.register_package(_BEFORE_CPU, location_of, restore)
    registry = torch.serialization._package_registry
    patches.on_undo(lambda: registry.remove((_BEFORE_CPU, location_of, restore)))
    rebuild_here = torch._utils._rebuild_tensor

    def rebuild(storage: Any, *form: Any) -> Any:
        made = rebuild_here(storage, *form)
        return put(made, True) if location_of(storage) else made

    patches.set(torch._utils, "_rebuild_tensor", rebuild)
    reduce_here = Tensor._reduce_ex_internal

    def reduce(self: Any, protocol: int) -> Any:
        """The label becomes the storage's location. A sparse tensor has no storage, but its parts have."""
        form = reduce_here(self, protocol)
        if self.layout == torch.strided:
            storage = untyped(form[1][0])
            if on_cuda(self) or hasattr(storage, LABEL):
                setattr(storage, LABEL, label() if on_cuda(self) else None)
        return form

    patches.set(Tensor, "_reduce_ex_internal", reduce)
    install_storages(patches)
    load_here = torch.jit.load

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        """C++ creates the tensors of a script."""
        cuda = map_location is not None and names_cuda(map_location)
        loaded = load_here(f, "cpu" if cuda else map_location, *args, **kwargs)
        return loaded.cuda() if cuda else loaded

    patches.set(torch.jit, "load", load)
    patches.set(torch._utils, "_get_obj_state", without_label(torch._utils._get_obj_state))


def install_storages(patches: Patches) -> None:
    def cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
        """As in `torch.load(file, map_location=lambda storage, location: storage.cuda(0))`."""
        names_cuda(CUDA if device is None else device)
        made = self.clone()
        setattr(made, LABEL, label())
        return made

    patches.set(torch.storage._StorageBase, "cuda", cuda)
    share_here = getattr(torch.UntypedStorage, "_new_shared", None)
    if share_here is None:
        return

    def share(cls: Any, /, size: int, **options: Any) -> Any:
        """Called by a data loader's worker for a batch."""
        if names_cuda(options.get("device", "cpu")):
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
                "'spawn' start method\n"
                "hint: let the workers make batches on the CPU, and move each to the GPU where it is used"
            )
        return share_here(size, **options)

    patches.set(torch.UntypedStorage, "_new_shared", classmethod(share))


def without_label(state_here: Any) -> Any:
    def state_of(obj: Any) -> Any:
        state = state_here(obj)
        if isinstance(obj, Tensor) and isinstance(state, dict):
            return {name: value for name, value in state.items() if name != LABEL}
        return state

    return state_of


def location_of(storage: Any) -> str | None:
    return "cuda:0" if getattr(untyped(storage), LABEL, None) else None


def restore(storage: Any, location: str) -> Any:
    if not isinstance(location, str) or not location.startswith("cuda"):
        return None
    names_cuda(location)
    with torch._C.DisableTorchFunction():
        if untyped(storage).device.type == "cpu":
            setattr(untyped(storage), LABEL, label())
    return storage
