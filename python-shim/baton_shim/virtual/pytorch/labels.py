"""The label that says of a tensor that it is on the virtual GPU, and what names a device.

The label is an attribute, so it lasts as long as the tensor, also where C++ alone holds it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy

from baton_shim.virtual import LABEL

Tensor = torch.Tensor
CUDA = torch.device("cuda", 0)


def on_cuda(value: Any) -> bool:
    return getattr(value, LABEL, None) is True


def put(value: Any, cuda: bool) -> Any:
    """Label, or unlabel, every tensor of a result. Returns the same value."""
    if isinstance(value, Tensor):
        if cuda:
            value.__dict__[LABEL] = True
        else:
            value.__dict__.pop(LABEL, None)
    elif isinstance(value, (list, tuple)):
        for part in value:
            put(part, cuda)
    elif isinstance(value, dict):
        for part in value.values():
            put(part, cuda)
    return value


def look(values: Any) -> tuple[bool, bool]:
    """Whether some tensor in these is on the GPU, and whether one with a dimension is not."""
    cuda = cpu = False
    for part in values:
        if getattr(part, LABEL, None) is True:
            cuda = True
        elif isinstance(part, Tensor):
            cpu = cpu or is_lazy(part) or part.dim() > 0  # one without a size yet answers nothing
        elif isinstance(part, (list, tuple)):
            below = look(part)
            cuda, cpu = cuda or below[0], cpu or below[1]
        elif isinstance(part, dict):
            below = look(part.values())
            cuda, cpu = cuda or below[0], cpu or below[1]
    return cuda, cpu


def first_tensor(values: Any) -> Any:
    for part in values:
        found = first_tensor(part) if isinstance(part, (list, tuple)) else part
        if isinstance(found, Tensor):
            return found
    return None


_NAMES: dict[Any, bool] = {
    **dict.fromkeys(("cuda", "cuda:0", CUDA, torch.device("cuda")), True),
    **dict.fromkeys(("cpu", torch.device("cpu")), False),
}


def names_cuda(device: Any) -> bool:
    """Whether this names the virtual GPU. A bare number is one. Raises for a GPU that is not there."""
    try:
        return _NAMES[device]
    except (KeyError, TypeError):
        pass
    if isinstance(device, int):
        device = torch.device("cuda", device)
    device = torch.device(device)
    if device.type == "cuda" and device.index not in (None, 0):
        error = getattr(torch, "AcceleratorError", RuntimeError)
        raise error("CUDA error: invalid device ordinal")
    return bool(device.type == "cuda")
