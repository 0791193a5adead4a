"""The label that says of a tensor that it is on the virtual GPU, and what names a device.

The label is an attribute, so it lasts as long as the tensor, also where C++ alone holds it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy

from baton_shim.virtual.label import LABEL, Label, label

Tensor = torch.Tensor
CUDA = torch.device("cuda", 0)


def on_cuda(value: Any) -> bool:
    return type(getattr(value, LABEL, None)) is Label


def put(value: Any, cuda: bool) -> Any:
    """Label, or unlabel, every tensor of a result. Returns the same value."""
    if isinstance(value, Tensor):
        if cuda:
            value.__dict__[LABEL] = label()
        else:
            value.__dict__.pop(LABEL, None)
    elif isinstance(value, (list, tuple)):
        for part in value:
            put(part, cuda)
    elif isinstance(value, dict):
        for part in value.values():
            put(part, cuda)
    return value


def look(values: Any) -> tuple[Label | None, bool]:
    """The label of those tensors in these that are on the GPU, and whether one with a dimension is not."""
    shared, cpu = None, False
    for part in values:
        found = getattr(part, LABEL, None)
        if type(found) is Label:
            shared = found
        elif isinstance(part, Tensor):
            cpu = cpu or is_lazy(part) or part.dim() > 0  # one without a size yet answers nothing
        elif isinstance(part, (list, tuple, dict)):
            found, below = look(part.values() if isinstance(part, dict) else part)
            shared, cpu = shared or found, cpu or below
    return shared, cpu


def first_tensor(values: Any) -> Any:
    for part in values:
        found = first_tensor(part) if isinstance(part, (list, tuple)) else part
        if isinstance(found, Tensor):
            return found
    return None


NAMES: dict[Any, bool] = {
    **dict.fromkeys(("cuda", "cuda:0", CUDA, torch.device("cuda")), True),
    **dict.fromkeys(("cpu", torch.device("cpu")), False),
}


def names_cuda(device: Any) -> bool:
    """Whether this names the virtual GPU. A bare number is one. Raises for a GPU that is not there."""
    try:
        return NAMES[device]
    except (KeyError, TypeError):
        pass
    if isinstance(device, int):
        device = torch.device("cuda", device)
    device = torch.device(device)
    if device.type == "cuda" and device.index not in (None, 0):
        error = getattr(torch, "AcceleratorError", RuntimeError)
        raise error("CUDA error: invalid device ordinal")
    return bool(device.type == "cuda")
