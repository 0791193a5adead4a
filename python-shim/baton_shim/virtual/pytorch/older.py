"""torch 1.13, which does not ask the mode when a tensor is indexed, and whose `GradScaler` works on a GPU only."""

from __future__ import annotations

from typing import Any

import torch

from baton_shim.virtual.patches import Patches
from baton_shim.virtual.pytorch.indexing import get_item, set_item
from baton_shim.virtual.pytorch.labels import Tensor
from baton_shim.virtual.pytorch.mode import mode_here


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
    patches.set(torch, "_amp_foreach_non_finite_check_and_unscale_", unscale)
    patches.set(torch, "_amp_update_scale_", update_scale)


def unscale(gradients: list[Any], found_infinite: Any, inverse_scale: Any) -> None:
    """Multiplies all by a number, and says with a 1.0 that one of them is not finite."""
    for gradient in gradients:
        if not torch.isfinite(gradient).all():
            found_infinite.fill_(1.0)
        gradient.mul_(inverse_scale)


def update_scale(scale: Any, steps: Any, found_infinite: Any, growth: float, backoff: float, interval: int) -> Any:
    """Smaller after a step that was not finite, larger after so many that were."""
    if found_infinite.item():
        scale.mul_(backoff)
        steps.fill_(0)
    elif steps.item() + 1 == interval:
        scale.mul_(growth)
        steps.fill_(0)
    else:
        steps.add_(1)
    return scale
