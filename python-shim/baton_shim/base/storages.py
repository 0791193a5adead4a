"""The memory beneath a tensor of torch, whichever version of torch it is.

Since 2.0 a tensor gives its untyped storage; 1.13 gives a typed one, which is a view of it.

**Invariant:** imports nothing.
"""

from __future__ import annotations

from typing import Any


def storage_of(tensor: Any) -> Any:
    """The untyped storage. Older versions make a new object for it at each call."""
    ask = getattr(tensor, "untyped_storage", None)
    return untyped(tensor.storage()) if ask is None else ask()


def untyped(storage: Any) -> Any:
    """What a typed storage is a view of."""
    return getattr(storage, "_untyped_storage", None) or getattr(storage, "_storage", storage)
