"""The limits of number types: `np.finfo`, `torch.finfo` and `torch.iinfo`. Their pickling leaves out the type."""

from __future__ import annotations

import sys
from typing import Any

from baton_shim.state.kinds.base import Kind, imported


class LimitsKind(Kind):
    name = "limits"

    def reduce(self, obj: Any) -> Any:
        dtype = obj.dtype  # torch has only its name
        return type(obj), (getattr(sys.modules["torch"], dtype) if isinstance(dtype, str) else dtype,)


def is_limits_type(kind: type) -> bool:
    limits = imported("numpy", "finfo"), imported("torch", "finfo"), imported("torch", "iinfo")
    return any(kind is one for one in limits)
