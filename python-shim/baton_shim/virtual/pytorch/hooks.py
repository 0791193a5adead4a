"""The student's hooks that autograd calls with gradients from C++, which have no label yet."""

from __future__ import annotations

from typing import Any

import torch

from baton_shim.virtual.pytorch.labels import put
from baton_shim.virtual.pytorch.mode import all_on_cuda


class LabellingHook:
    """Wraps the student's hook. It can be sent; with a real GPU it labels nothing."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook

    def __call__(self, *arguments: Any) -> Any:
        label_gradients(arguments)
        return self.hook(*arguments)


def label_gradients(gradients: Any) -> None:
    """Labels gradients in CPU memory that belong to a backward pass on the GPU."""
    with torch._C.DisableTorchFunction():
        for gradient in gradients:
            if isinstance(gradient, tuple):
                label_gradients(gradient)
            elif isinstance(gradient, torch.Tensor) and (all_on_cuda() or gradient.device.type == "cpu"):
                put(gradient, True)
