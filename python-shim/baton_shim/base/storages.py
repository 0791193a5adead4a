"""The memory of a torch tensor.

**Invariant:** imports nothing.
"""

from __future__ import annotations

from typing import Any


def storage_of(tensor: Any) -> Any:
    """The tensor's untyped storage."""
    return tensor.untyped_storage()


def untyped(storage: Any) -> Any:
    """The untyped storage beneath a typed one."""
    return getattr(storage, "_untyped_storage", storage)
