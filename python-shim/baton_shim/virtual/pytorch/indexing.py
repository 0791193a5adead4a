"""Elements of tensors: read, written, looked up and joined. Here a GPU is stricter with numbers on the CPU."""

from __future__ import annotations

from typing import Any

import torch

from baton_shim.virtual.label import LABEL, Label
from baton_shim.virtual.pytorch.labels import Tensor, on_cuda, put
from baton_shim.virtual.pytorch.mode import VirtualCuda, mixed
from baton_shim.virtual.pytorch.rules import Args, Kwargs, present, rule


@rule(Tensor.__getitem__)
def get_item(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    source, index = args
    if not mode.holds(source):
        refuse_from_cuda(index)
        return function(source, index)
    result = function(source, index)
    if type(result) is Tensor and type(found := getattr(source, LABEL, None)) is Label:
        result._baton_cuda = found
        return result
    return put(result, True)


def refuse_from_cuda(index: Any) -> None:
    """Checks the index of a tensor on the CPU. Single numbers may be on any device, because they are read."""
    for part in index if isinstance(index, tuple) else (index,):
        if on_cuda(part) and part.dim() > 0:
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")


@rule(Tensor.__setitem__)
def set_item(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> None:
    target, index, value = args
    cuda = mode.holds(target)
    if not cuda:
        refuse_from_cuda(index)
    apart = isinstance(value, Tensor) and mode.holds(value) != cuda and value.dim() > 0
    if apart and selects(index):  # copying to a slice is allowed between devices
        raise mixed(function)
    function(target, index, value)


def selects(index: Any) -> bool:
    """Whether this indexes by a tensor, or by something that becomes one."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, list) or getattr(part, "ndim", 0) > 0 for part in parts)


@rule(torch.cat, torch.stack, *present(torch, "concat concatenate hstack vstack dstack"))
def join(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """Single numbers on the CPU are not accepted, either."""
    tensors = args[0] if args else kwargs.get("tensors")
    if isinstance(tensors, (list, tuple)):
        cuda = [mode.holds(tensor) for tensor in tensors]
        if True in cuda and False in cuda:
            raise mixed(function)
        if True in cuda and not kwargs:
            return put(function(*args), True)
    return mode.compute_with(function, args, kwargs) if kwargs else mode.compute(function, args, kwargs)


@rule(torch.nn.functional.embedding)
def embedding(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """A single number on the CPU, such as the index of one word, is not accepted, either."""
    tensors = [part for part in (*args[:2], *kwargs.values()) if isinstance(part, Tensor)]
    if len({mode.holds(tensor) for tensor in tensors}) > 1:
        raise mixed(function)
    return put(function(*args, **kwargs), mode.holds(tensors[0]))
