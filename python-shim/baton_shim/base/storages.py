"""The memory of a torch tensor.

**Invariant:** never imports torch itself.
"""

from __future__ import annotations

import sys
from typing import Any


def storage_of(tensor: Any) -> Any:
    """The tensor's untyped storage."""
    return tensor.untyped_storage()


def range_of(storage: Any) -> tuple[int, int]:
    """Where its memory begins and ends."""
    low = storage.data_ptr()
    return low, low + storage.nbytes()


def untyped(storage: Any) -> Any:
    """The untyped storage beneath a typed one."""
    return getattr(storage, "_untyped_storage", storage)


def held_in_place(storage: Any) -> Any:
    """An array over the storage's memory. The storage cannot be resized from then on, as after `tensor.numpy()`."""
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction():
        return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


def is_storage(owner: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(owner, torch.UntypedStorage)


def without_tensor(user: Any) -> Any:
    """The storage of a tensor, which may get another one later; any other object itself."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(user, torch.Tensor):
        return user
    with torch._C.DisableTorchFunction():
        return storage_of(user)
