"""The memory beneath a tensor of torch.

**Invariant:** imports nothing.
"""

from __future__ import annotations

from typing import Any


def storage_of(tensor: Any) -> Any:
    """The untyped storage."""
    return tensor.untyped_storage()


def untyped(storage: Any) -> Any:
    """What a typed storage is a view of."""
    return getattr(storage, "_untyped_storage", storage)
