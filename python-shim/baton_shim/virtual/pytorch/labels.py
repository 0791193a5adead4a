"""The label of a tensor on the virtual GPU, and which values name a device.

The label is an attribute, so it lasts as long as the tensor, even if only C++ refers to that.
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
    """Labels, or unlabels, every tensor of a result. Returns the same value."""
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
    """The label of the tensors on the GPU, and whether a tensor with a dimension is on the CPU."""
    shared, cpu = None, False
    for part in values:
        found = getattr(part, LABEL, None)
        if type(found) is Label:
            shared = found
        elif isinstance(part, Tensor):
            cpu = cpu or is_lazy(part) or part.dim() > 0  # a lazy one has no dimensions to ask for yet
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
    """Whether this names the virtual GPU, as does a bare number. Raises for a GPU that does not exist."""
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
