"""torch's data loaders. With `persistent_workers`, a loader keeps its iterator, whose processes belong to one kernel.

Each kernel keeps its own iterator, and makes one when it needs it.
"""

from __future__ import annotations

from typing import Any

from baton_shim.state.kinds.base import imported
from baton_shim.state.kinds.frames import WholeKind
from baton_shim.state.kinds.instances import pickles_ordinarily

_CACHE = "_iterator"


class LoaderKind(WholeKind):
    name = "loader"

    def is_blind(self, obj: Any) -> bool:
        return True

    def lasting(self, obj: Any) -> dict[str, Any]:
        return {name: value for name, value in vars(obj).items() if name != _CACHE}

    def set_attributes(self, obj: Any, attributes: dict[str, Any]) -> None:
        super().set_attributes(obj, {**attributes, _CACHE: vars(obj).get(_CACHE)})


def is_loader_type(kind: type) -> bool:
    return issubclass(kind, imported("torch.utils.data", "DataLoader")) and pickles_ordinarily(kind)
