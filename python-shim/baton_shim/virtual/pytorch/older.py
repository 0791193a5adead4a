"""torch 1.13, which does not ask the mode when a tensor is indexed."""

from __future__ import annotations

from typing import Any

import torch

from baton_shim.virtual.patches import Patches
from baton_shim.virtual.pytorch.labels import Tensor
from baton_shim.virtual.pytorch.mode import mode_here
from baton_shim.virtual.pytorch.rules import get_item, set_item


def install(patches: Patches) -> None:
    if int(torch.__version__.partition(".")[0]) >= 2:
        return
    get_here, set_here = Tensor.__getitem__, Tensor.__setitem__

    def getting(self: Any, index: Any) -> Any:
        return get_item(mode_here(), get_here, (self, index), {})

    def setting(self: Any, index: Any, value: Any) -> None:
        set_item(mode_here(), set_here, (self, index, value), {})

    patches.set(Tensor, "__getitem__", getting)
    patches.set(Tensor, "__setitem__", setting)
