"""Hooks of the student's that autograd calls with gradients that C++ made, which have no label yet."""

from __future__ import annotations

from typing import Any

import torch

from baton_shim.virtual.pytorch.labels import put
from baton_shim.virtual.pytorch.mode import all_on_cuda


class LabellingHook:
    """The student's hook. It travels; with a real GPU there is nothing to label."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook

    def __call__(self, *arguments: Any) -> Any:
        label_gradients(arguments)
        return self.hook(*arguments)


def label_gradients(gradients: Any) -> None:
    """What is in CPU memory and belongs to a backward pass of the GPU."""
    with torch._C.DisableTorchFunction():
        for gradient in gradients:
            if isinstance(gradient, tuple):
                label_gradients(gradient)
            elif isinstance(gradient, torch.Tensor) and (all_on_cuda() or gradient.device.type == "cpu"):
                put(gradient, True)
