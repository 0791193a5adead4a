"""Gradient calls: given gradients must be on the device of their outputs."""

from __future__ import annotations

import functools
from typing import Any

import torch

from baton_shim.virtual.patches import Patches
from baton_shim.virtual.pytorch.labels import Tensor, put
from baton_shim.virtual.pytorch.mode import VirtualCuda, mode_here
from baton_shim.virtual.pytorch.rules import Args, Kwargs, rule


@rule(torch.autograd.grad)
def grad(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """Inputs may be on either device; each gradient is on the device of its input."""
    asked = dict(zip(("outputs", "inputs", "grad_outputs"), args, strict=False)) | kwargs
    compare(mode, asked["outputs"], asked.get("grad_outputs"))
    results = function(*args, **kwargs)
    for source, result in zip(several(asked["inputs"]), results, strict=False):
        if isinstance(source, Tensor):
            put(result, mode.holds(source))
    return results


@rule(Tensor.backward)
def backward_of_one(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> None:
    compare(mode, args[0], kwargs.get("gradient", args[1] if len(args) > 1 else None))
    function(*args, **kwargs)


def install(patches: Patches) -> None:
    """For `backward` of several tensors, older versions of torch do not call the mode."""
    backward_here = torch.autograd.backward

    @functools.wraps(backward_here)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        compare(mode_here(), tensors, grad_tensors)
        backward_here(tensors, grad_tensors, *args, **kwargs)

    patches.set(torch.autograd, "backward", backward)


def compare(mode: VirtualCuda, outputs: Any, gradients: Any) -> None:
    """A gradient that is a single number may be on any device."""
    for index, pair in enumerate(zip(several(outputs), several(gradients), strict=False)):
        if all(isinstance(part, Tensor) for part in pair) and pair[1].dim() > 0:
            wanted, found = ("cuda:0" if mode.holds(part) else "cpu" for part in pair)
            if wanted != found:
                raise RuntimeError(f"invalid gradient at index {index} - expected device {wanted} but got {found}")


def several(tensors: Any) -> tuple[Any, ...]:
    return tuple(tensors) if isinstance(tensors, (list, tuple)) else (tensors,)
