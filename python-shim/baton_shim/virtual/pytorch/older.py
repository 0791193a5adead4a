"""Older versions of torch (2.2), which call the mode less often, and whose `GradScaler` works only on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from baton_shim.virtual.patches import Patches
from baton_shim.virtual.pytorch.gradients import several
from baton_shim.virtual.pytorch.indexing import get_item, set_item
from baton_shim.virtual.pytorch.labels import Tensor, first_tensor, on_cuda, put
from baton_shim.virtual.pytorch.mode import RULES, Rule, VirtualCuda, mode_here
from baton_shim.virtual.pytorch.rules import Args, Kwargs
from baton_shim.virtual.pytorch.training import passing_labels


def install(patches: Patches) -> None:
    tensor = torch.zeros(1)
    if not asks_mode(lambda: tensor[0]):
        install_indexing(patches)
    if not hasattr(torch.autograd, "_engine_run_backward"):
        install_backward(patches)
    if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_amp_update_scale_", "CPU"):
        patches.set(torch, "_amp_foreach_non_finite_check_and_unscale_", unscale)
        patches.set(torch, "_amp_update_scale_", update_scale)


def asks_mode(call: Callable[[], object]) -> bool:
    """Whether this call goes through a mode."""
    asked = []

    class Asked(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
            asked.append(function)
            return function(*args, **(kwargs or {}))

    with Asked():
        call()
    return bool(asked)


# ---- elements ----


def install_indexing(patches: Patches) -> None:
    get_here, set_here = Tensor.__getitem__, Tensor.__setitem__

    def getting(self: Any, index: Any) -> Any:
        return get_item(mode_here(), get_here, (self, index), {})

    def setting(self: Any, index: Any, value: Any) -> None:
        set_item(mode_here(), set_here, (self, index, value), {})

    patches.set(Tensor, "__getitem__", getting)
    patches.set(Tensor, "__setitem__", setting)
    made = {function: RULES[function] for function in (torch.tensor, torch.as_tensor)}
    RULES.update({function: joining(make) for function, make in made.items()})
    RULES[getting] = lambda here, function, args, kwargs: get_item(here, get_here, args, kwargs)  # for some indices
    RULES[setting] = lambda here, function, args, kwargs: set_item(here, set_here, args, kwargs)
    patches.on_undo(lambda: RULES.update(made))


def joining(make: Rule) -> Rule:
    """With `__getitem__` in Python, C++ treats a tensor as a sequence, and a single number has no length."""

    def made(here: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
        parts = args[0] if args else None
        if not isinstance(parts, (list, tuple)) or first_tensor(parts) is None:
            return make(here, function, args, kwargs)
        with warnings.catch_warnings(action="ignore"):  # it recommends a list
            return make(here, function, (joined(parts),), kwargs)

    return made


def joined(parts: Any) -> Any:
    if isinstance(parts, (list, tuple)):
        return torch.stack([joined(part) for part in parts])
    return torch.as_tensor(parts).detach()


# ---- backward ----


def install_backward(patches: Patches) -> None:
    """In these versions, a backward pass is run by a method of an object."""
    engine = torch.autograd.Variable._execution_engine
    stand_in = SimpleNamespace(
        run_backward=passing_labels(engine.run_backward),
        queue_callback=engine.queue_callback,
        is_checkpoint_valid=engine.is_checkpoint_valid,
    )
    patches.set(torch.autograd.Variable, "_execution_engine", stand_in)

    def apply(cls: Any, *args: Any) -> Any:
        """If `forward` returns an argument unchanged, C++ creates a new tensor for it."""
        result = super(torch.autograd.Function, cls).apply(*args)
        given = {part.data_ptr() for part in args if on_cuda(part)}
        for part in several(result):
            if isinstance(part, Tensor) and given and part.data_ptr() in given:
                put(part, True)
        return result

    patches.set(torch.autograd.Function, "apply", classmethod(apply))


# ---- scaled gradients ----


def unscale(gradients: list[Any], found_infinite: Any, inverse_scale: Any) -> None:
    """Multiplies all gradients by a number, and writes 1.0 if one of them is not finite."""
    for gradient in gradients:
        if not torch.isfinite(gradient).all():
            found_infinite.fill_(1.0)
        gradient.mul_(inverse_scale)


def update_scale(scale: Any, steps: Any, found_infinite: Any, growth: float, backoff: float, interval: int) -> Any:
    """Smaller after a step that was not finite, larger after `interval` steps that were."""
    if found_infinite.item():
        scale.mul_(backoff)
        steps.fill_(0)
    elif steps.item() + 1 == interval:
        scale.mul_(growth)
        steps.fill_(0)
    else:
        steps.add_(1)
    return scale
