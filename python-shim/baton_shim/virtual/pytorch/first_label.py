"""Creates the first label: in calls that name the GPU while nothing is on it and the mode is not entered.

Each of these torch functions has a wrapper, which creates the label and then calls the function, so that the call
itself goes through the mode. All other tensors on the GPU are created from tensors that are there already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from baton_shim.virtual.label import label
from baton_shim.virtual.patches import Patches
from baton_shim.virtual.pytorch.labels import NAMES, Tensor
from baton_shim.virtual.pytorch.mode import RULES, VirtualCuda

MADE = """
    _efficientzerotensor _empty_affine_quantized _empty_per_channel_affine_quantized arange as_tensor asarray
    bartlett_window blackman_window empty empty_like empty_permuted empty_quantized empty_strided eye from_file full
    full_like hamming_window hann_window kaiser_window linspace logspace normal ones ones_like rand rand_like randint
    randint_like randn randn_like randperm range scalar_tensor sparse_bsc_tensor sparse_bsr_tensor
    sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor tensor tril_indices triu_indices
    zeros zeros_like
"""
MADE_OF_ANOTHER = "new new_empty new_empty_strided new_full new_ones new_tensor new_zeros"
MOVED = "to type"
ALWAYS = "cuda pin_memory is_pinned"
_NO_NAMES = (type(None), torch.dtype, bool)


def install(patches: Patches) -> None:
    for owner, names in ((torch, MADE), (torch.fft, "fftfreq rfftfreq"), (Tensor, MADE_OF_ANOTHER)):
        wrap(patches, by_name, owner, names)
    wrap(patches, by_place(1), Tensor, MOVED)
    wrap(patches, by_place(0), torch._C._nn, "_parse_to")
    wrap(patches, always, Tensor, ALWAYS)
    context = getattr(getattr(torch.utils, "_device", None), "DeviceContext", None)
    if context is not None:
        patches.set(context, "__init__", for_its_life(context.__init__))


def wrap(patches: Patches, wrapper: Callable[[Any], Any], owner: Any, names: str) -> None:
    for name in present_names(owner, names):
        here = getattr(owner, name)
        made = wrapper(here)
        patches.set(owner, name, made)
        made.__name__, made.__doc__ = name, here.__doc__
        made.__module__ = getattr(owner, "__module__", owner.__name__)
        made.__qualname__ = f"{owner.__qualname__}.{name}" if owner is Tensor else name
        if owner is Tensor:
            ask_by_name(patches, made, here)
        else:
            known_to_scripts(patches, made, name)


def present_names(owner: Any, names: str) -> list[str]:
    return [name for name in names.split() if hasattr(owner, name)]


def ask_by_name(patches: Patches, made: Any, here: Any) -> None:
    """C++ looks methods up by name, so it passes the wrapper to the mode, and to tensors without a size yet."""
    rule = RULES.get(here, VirtualCuda.compute_with)
    RULES[made] = lambda mode, function, args, kwargs: rule(mode, here, args, kwargs)
    patches.on_undo(lambda: RULES.__delitem__(made))
    allowed = torch.nn.parameter.UninitializedTensorMixin._allowed_methods
    if here in allowed:
        allowed.append(made)
        patches.on_undo(lambda: allowed.remove(made))


def known_to_scripts(patches: Patches, made: Any, name: str) -> None:
    """`torch.jit.script` recognises built-in functions by identity, in a table that it creates when needed."""
    known = torch.jit._builtins
    if known._builtin_table is not None:
        known._register_builtin(made, f"aten::{name}")
    patches.on_undo(lambda: (known._builtin_table or {}).pop(id(made), None))


def may_name(asked: Any) -> bool:
    """Whether this may name the GPU. torch refuses values that cannot name a device at all."""
    if type(asked) in _NO_NAMES or isinstance(asked, Tensor):
        return False
    try:
        return NAMES.get(asked, True)
    except TypeError:
        return False


def by_name(here: Any) -> Any:
    """For calls with `device=`; pinned memory is handled by the mode, too."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs and (may_name(kwargs.get("device")) or kwargs.get("pin_memory")):
            _kept = label()  # until the call returns
        return here(*args, **kwargs)

    return call


def by_place(place: int) -> Callable[[Any], Any]:
    """For calls in which this positional argument may also be the device."""

    def wrapper(here: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            asked = args[place] if len(args) > place else None
            if (asked is not None and may_name(asked)) or (kwargs and may_name(kwargs.get("device"))):
                _kept = label()
            return here(*args, **kwargs)

        return call

    return wrapper


def always(here: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        _kept = label()
        return here(*args, **kwargs)

    return call


def for_its_life(here: Any) -> Any:
    """For `with torch.device("cuda")`, a mode of torch's own, which passes the GPU to each call."""

    def init(self: Any, device: Any) -> None:
        if may_name(device):
            self._baton_label = label()
        here(self, device)

    return init
