"""The memory of a torch tensor.

**Invariant:** imports no library.
"""

from __future__ import annotations

import sys
from typing import Any


def storage_of(tensor: Any) -> Any:
    """The tensor's untyped storage."""
    return tensor.untyped_storage()


def untyped(storage: Any) -> Any:
    """The untyped storage beneath a typed one."""
    return getattr(storage, "_untyped_storage", storage)


def held_in_place(storage: Any) -> Any:
    """An array that holds the storage's memory. From now on it cannot be resized, as after `tensor.numpy()`."""
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction():
        return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
