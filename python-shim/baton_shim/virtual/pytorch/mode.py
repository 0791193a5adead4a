"""The function mode through which every torch call goes: results of labelled tensors are labelled.

Calls that need more have their own rules (`rules.py`). Code inside a handled call sees CPU tensors; only `AllOnCuda`
handles student code that runs in there.

In the main thread, the mode is entered with the first label and left with the last one, because each torch call through
it takes up to twice as long. Calls that may create a first label are in `first_label.py`.

**Invariant:** devices are compared before anything runs, because an in-place call has already written when it returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from baton_shim.virtual.hint import WATCH
from baton_shim.virtual.label import LABEL, Label
from baton_shim.virtual.pytorch.capacity import fitting, raise_in_words_of_a_gpu
from baton_shim.virtual.pytorch.labels import Tensor, first_tensor, look, names_cuda, on_cuda, put
from baton_shim.virtual.pytorch.products import CONVOLUTIONS, PRODUCTS, AsOnGpu, of_whole_numbers, two_devices

Rule = Callable[["VirtualCuda", Any, tuple[Any, ...], dict[str, Any]], Any]
RULES: dict[Any, Rule] = {}
MIXES: set[Any] = set()
"""Calls that accept tensors of both devices on a GPU, too; the result is on the device of the first tensor."""
WRITES: set[Any] = set()
"""In-place calls that cannot write a result from the GPU to a number on the CPU."""
FACTORIES: set[Any] = set()
"""Calls that create a tensor on the default device."""
PINNED = "_baton_pinned"
NUMBERS = frozenset({int, float, bool, type(None), torch.dtype})


class VirtualCuda(TorchFunctionMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.default: Label | None = None
        """Set while the default device is the GPU."""

    @property
    def default_cuda(self) -> bool:
        return self.default is not None

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rule = RULES.get(function)
        if rule is not None:
            return rule(self, function, args, kwargs or {})
        if kwargs:
            return self.compute_with(function, args, kwargs)
        label, cpu = None, False
        for part in args:
            if type(part) in NUMBERS:
                continue
            found = getattr(part, LABEL, None)
            if type(found) is Label:
                label = found
            elif isinstance(part, Tensor):
                cpu = cpu or is_lazy(part) or part.dim() > 0 or (part is args[0] and function in WRITES)
            elif type(part) is tuple or type(part) is list:
                found, below = look(part)
                label, cpu = label or found, cpu or below
        if label is None:
            return self.make(function, args, {}) if self.default_cuda and function in FACTORIES else function(*args)
        if cpu:
            return self.mix(function, args, {})
        if function in PRODUCTS and of_whole_numbers(args):
            return self.run(function, args, {})
        began = perf_counter()
        try:
            result = function(*args)
        except RuntimeError as error:
            raise_in_words_of_a_gpu(error)
            raise
        WATCH.seconds = seconds = WATCH.seconds + perf_counter() - began
        if seconds > WATCH.limit:
            WATCH.computed_for_long()
        if type(result) is Tensor:
            result._baton_cuda = label
            return result
        return put(result, True)

    def holds(self, tensor: Any) -> bool:
        """Whether this tensor is on the GPU."""
        return type(getattr(tensor, LABEL, None)) is Label

    def compute(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """For calls without a device: the result is where the inputs are."""
        cuda, cpu = look((args, kwargs))
        if not cuda:
            return function(*args, **kwargs)
        if cpu or (function in WRITES and not self.holds(args[0])):
            return self.mix(function, args, kwargs)
        return self.run(function, args, kwargs)

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call on the GPU."""
        began = perf_counter()
        try:
            if function in PRODUCTS and of_whole_numbers(args):
                with AsOnGpu():
                    result = function(*args, **kwargs)
            else:
                result = function(*args, **kwargs)
        except RuntimeError as error:
            raise_in_words_of_a_gpu(error)
            raise
        WATCH.computed(perf_counter() - began)
        return put(result, True)

    def compute_with(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("pin_memory"):
            pinned = self.compute_with(function, args, {**kwargs, "pin_memory": False})
            pinned.__dict__[PINNED] = True
            return pinned
        asked = kwargs.get("device")
        if asked is not None:
            return put(self.made_here(function, args, kwargs), names_cuda(asked))
        if self.default_cuda and function in FACTORIES:
            return self.make(function, args, kwargs)
        return self.compute(function, args, kwargs)

    def make(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call on the default device, which is the GPU."""
        return put(function(*args, **kwargs), True)

    def made_here(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call that names the device of its result, on the CPU."""
        if not names_cuda(kwargs["device"]):
            return function(*args, **kwargs)
        began = perf_counter()
        try:
            made = fitting(function(*args, **{**kwargs, "device": "cpu"}))
        except RuntimeError as error:
            raise_in_words_of_a_gpu(error)
            raise
        WATCH.computed(perf_counter() - began)
        return made

    def mix(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function in CONVOLUTIONS:
            raise two_devices(function, self.holds, args, kwargs)
        if function not in MIXES:
            raise mixed(function)
        return put(function(*args, **kwargs), on_cuda(first_tensor(args)))


class AllOnCuda(VirtualCuda):
    """Used while autograd or a function transform calls student code with tensors from C++: all are on the GPU."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            rule = RULES.get(function)
            if rule is not None:
                return rule(self, function, args, kwargs or {})
            return self.compute_with(function, args, kwargs or {})

    def holds(self, tensor: Any) -> bool:
        return True

    def compute(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return put(function(*args, **kwargs), True)


def all_on_cuda() -> bool:
    depth = getattr(torch._C, "_len_torch_function_stack", lambda: 0)()
    return depth > 0 and isinstance(torch._C._get_function_stack_at(depth - 1), AllOnCuda)


def mixed(function: Any) -> RuntimeError:
    name = getattr(function, "__name__", str(function))
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
        f"(in a call of {name})"
    )


# Each thread has its own mode.
_HERE = threading.local()


def mode_here() -> VirtualCuda:
    """This thread's mode, entered or not."""
    mode: VirtualCuda | None = getattr(_HERE, "mode", None)
    if mode is None:
        mode = _HERE.mode = VirtualCuda()
    return mode


def switch(active: bool) -> None:
    """Takes effect in all threads, because a mode cannot be removed from another thread's stack."""
    VirtualCuda.__torch_function__ = ACTIVE if active else _passing  # type: ignore[method-assign]


ACTIVE = VirtualCuda.__torch_function__


def _passing(
    self: VirtualCuda, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    return function(*args, **(kwargs or {}))
