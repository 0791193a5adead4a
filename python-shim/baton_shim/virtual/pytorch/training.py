"""Training: backward passes, optimizers, autocast, transforms, and wrappers of models."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch

from baton_shim.virtual.hint import WATCH
from baton_shim.virtual.patches import Patches
from baton_shim.virtual.pytorch import precision
from baton_shim.virtual.pytorch.hooks import LabellingHook, label_gradients
from baton_shim.virtual.pytorch.labels import Tensor, look, names_cuda, on_cuda, put
from baton_shim.virtual.pytorch.mode import AllOnCuda, all_on_cuda, mixed, mode_here


def install(patches: Patches) -> None:
    install_backward(patches)
    install_optimizers(patches)
    install_autocast(patches)
    install_transforms(patches)
    install_data_parallel(patches)
    install_wrappers(patches)


# ---- backward ----


def install_backward(patches: Patches) -> None:
    if hasattr(torch.autograd, "_engine_run_backward"):
        patches.set(torch.autograd, "_engine_run_backward", passing_labels(torch.autograd._engine_run_backward))
    backward = torch.autograd.function.BackwardCFunction
    apply_here = backward.apply

    def apply(self: Any, *args: Any) -> Any:
        if all_on_cuda():
            label_gradients(args)
        return apply_here(self, *args)

    patches.set(backward, "apply", apply)
    saver = torch.autograd.graph.save_on_cpu
    save_here = saver.__init__

    def save_on_cpu(self: Any, pin_memory: bool = False, *args: Any, **kwargs: Any) -> None:
        save_here(self, False, *args, **kwargs)  # C++ calls it, and would use the driver for pinned memory

    patches.set(saver, "__init__", save_on_cpu)
    for name in ("register_full_backward_hook", "register_full_backward_pre_hook"):
        if hasattr(torch.nn.Module, name):
            patches.set(torch.nn.Module, name, with_labelling_hook(getattr(torch.nn.Module, name)))


def passing_labels(run_here: Any) -> Any:
    """Wraps what runs a backward pass: student code in it is called with tensors from C++."""

    @functools.wraps(run_here)
    def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(map(on_cuda, outputs)):
            return run_here(outputs, *args, **kwargs)
        with AllOnCuda(), WATCH.computing():
            return put(run_here(outputs, *args, **kwargs), True)

    return run


def with_labelling_hook(register_here: Any) -> Any:
    @functools.wraps(register_here)
    def register(self: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
        return register_here(self, ModuleHook(hook), *args, **kwargs)

    return register


class ModuleHook(LabellingHook):
    def __call__(self, module: Any, *gradients: Any) -> Any:
        if all_on_cuda():
            label_gradients(gradients)
        return self.hook(module, *gradients)


# ---- optimizers ----


def install_optimizers(patches: Patches) -> None:
    """A step of torch's own optimizers makes a hundred small calls, so it runs as a whole on CPU tensors."""
    optimizer = torch.optim.Optimizer
    if not hasattr(optimizer, "profile_hook_step"):
        return
    hooked_here = optimizer.profile_hook_step
    clear_here = optimizer.zero_grad

    def profile_hook_step(step: Any) -> Any:
        own = (step.__module__ or "").startswith("torch.optim")
        return stepping(hooked_here(step)) if own else hooked_here(step)

    @functools.wraps(clear_here)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        with torch._C.DisableTorchFunction():
            clear_here(self, *args, **kwargs)

    patches.set(optimizer, "profile_hook_step", staticmethod(profile_hook_step))
    patches.set(optimizer, "zero_grad", zero_grad)


_ON_CPU = {"step", "mu_product"}
"""Counters of most optimizers, which stay on the CPU with a GPU, too."""


def counts_on_cuda(optimizer: Any) -> bool:
    asked = any(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)
    return asked or isinstance(optimizer, torch.optim.ASGD)


def stepping(step: Callable[..., Any]) -> Callable[..., Any]:
    hooks: Any = sys.modules["torch.optim.optimizer"]

    @functools.wraps(step)
    def on_cpu(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked = args or kwargs.get("closure") is not None or kwargs.keys() - {"closure"}
        hooked = self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks
        hooked = hooked or hooks._global_optimizer_pre_hooks or hooks._global_optimizer_post_hooks
        if asked or hooked or counts_on_cuda(self):
            return step(self, *args, **kwargs)
        with torch._C.DisableTorchFunction(), WATCH.computing():
            compare(self)
            result = step(self)
            for parameter, state in self.state.items():
                if state and on_cuda(parameter):
                    for name, value in state.items():
                        if name not in _ON_CPU and isinstance(value, Tensor):
                            put(value, True)
        return result

    return on_cpu


def compare(optimizer: Any) -> None:
    """Raises if a parameter's state is on the other device, because the model was moved after the first step."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items() if state else ():
            counts = name in _ON_CPU or not isinstance(value, Tensor) or value.dim() == 0
            if not counts and on_cuda(value) != on_cuda(parameter):
                raise mixed(type(optimizer).step)


# ---- autocast ----


def install_autocast(patches: Patches) -> None:
    """`autocast("cuda")` keeps its flags, and the CPU's autocast computes in the requested type."""
    autocast = torch.amp.autocast_mode.autocast
    enter_here, exit_here = autocast.__enter__, autocast.__exit__

    def enter(self: Any) -> Any:
        entered = enter_here(self)
        if self.device == "cuda":
            beneath = beneath_cuda(autocast, self)
            self.__dict__.setdefault("_baton_beneath", []).append(beneath)
            enter_here(beneath)
            precision.begin()
        return entered

    def leave(self: Any, *failure: Any) -> Any:
        if self.__dict__.get("_baton_beneath"):
            precision.end()
            exit_here(self._baton_beneath.pop(), *failure)
        return exit_here(self, *failure)

    patches.set(autocast, "__enter__", enter)
    patches.set(autocast, "__exit__", leave)


def beneath_cuda(autocast: Any, above: Any) -> Any:
    if above._enabled:
        with warnings.catch_warnings(action="ignore"):
            made = autocast("cpu", dtype=above.fast_dtype, cache_enabled=above._cache_enabled)
        if made._enabled:
            return made
    return autocast("cpu", dtype=torch.bfloat16, enabled=False)  # the only CPU type of older versions


# ---- function transforms ----

_TRANSFORMS = "vmap grad grad_and_value jacrev jacfwd hessian functionalize"
_WITH_INPUTS = "vjp jvp linearize"


def install_transforms(patches: Patches) -> None:
    functions = getattr(torch, "func", None)
    for owner, names in ((functions, _TRANSFORMS), (torch, "vmap")):
        for name in names.split():
            if hasattr(owner, name):
                patches.set(owner, name, transforming(getattr(owner, name)))
    for name in _WITH_INPUTS.split():
        if hasattr(functions, name):
            patches.set(functions, name, inside(getattr(functions, name)))


def transforming(transform: Any) -> Any:
    @functools.wraps(transform)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        return inside(transform(*args, **kwargs))

    return transformed


def inside(function: Any) -> Any:
    """For code that Python does not see: all tensors are on the GPU if one of the arguments is."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not look((args, kwargs))[0]:
            return function(*args, **kwargs)
        with AllOnCuda(), WATCH.computing():
            result = function(*args, **kwargs)
        if isinstance(result, tuple):  # vjp and linearize return a function among others
            result = tuple(inside(part) if isinstance(part, (FunctionType, partial)) else part for part in result)
        return put(result, True)

    return call


# ---- wrappers of models ----


def install_data_parallel(patches: Patches) -> None:
    """With one GPU there is nothing to distribute, but inputs from the CPU are moved to it."""

    def wrap(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        torch.nn.Module.__init__(self)
        self.module, self.device_ids, self.dim, self.output_device = module.to("cuda"), [0], 0, 0

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not all(map(on_cuda, (*self.module.parameters(), *self.module.buffers()))):
            raise RuntimeError(
                "module must have its parameters and buffers on device cuda:0 (device_ids[0]) but found one of "
                "them on device: cpu"
            )
        return self.module(*moved(args), **moved(kwargs))

    patches.set(torch.nn.DataParallel, "__init__", wrap)
    patches.set(torch.nn.DataParallel, "forward", forward)


def moved(part: Any) -> Any:
    """The value with all tensors in it on the GPU."""
    if isinstance(part, Tensor):
        return part.cuda()
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return type(part)(*map(moved, part))
    if isinstance(part, (list, tuple)):
        return type(part)(map(moved, part))
    return {key: moved(value) for key, value in part.items()} if isinstance(part, dict) else part


def install_wrappers(patches: Patches) -> None:
    profile = torch.autograd.profiler.profile
    profile_here = profile.__init__

    @functools.wraps(profile_here)
    def observe(self: Any, *args: Any, **kwargs: Any) -> None:
        """The GPU's measurements need the driver, so their columns show zeros."""
        if kwargs.get("use_device") == "cuda":
            kwargs |= {"use_device": None, "use_cpu": True}
        profile_here(self, *args, **kwargs)

    patches.set(profile, "__init__", observe)
    for scripted in (torch._C.ScriptFunction, torch._C.ScriptMethod):
        patches.set(scripted, "__call__", inside(scripted.__call__))
    new_here = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        made = new_here(cls, data, requires_grad)
        return put(made, True) if on_cuda(data) else made

    # Not `Tensor._make_subclass`, because dynamo checks its signature.
    patches.set(torch.nn.Parameter, "__new__", new)
    for kind in (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer):
        patches.set(kind, "__new__", without_size(kind.__new__))
    variable_here = torch.autograd.Variable.__new__

    def variable(cls: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        return put(variable_here(cls, data, *args, **kwargs), on_cuda(data))

    patches.set(torch.autograd.Variable, "__new__", variable)
    subclass_here = Tensor.as_subclass

    def as_subclass(self: Any, cls: Any) -> Any:
        return put(subclass_here(self, cls), on_cuda(self))  # C++ does not call the mode

    patches.set(Tensor, "as_subclass", as_subclass)


def without_size(new_here: Any) -> Any:
    """For the parameters of a lazy module."""

    @functools.wraps(new_here)
    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device", args[1] if len(args) > 1 else None)
        cuda = mode_here().default_cuda if device is None else names_cuda(device)
        return put(new_here(cls, *args, **kwargs), cuda)

    return new
