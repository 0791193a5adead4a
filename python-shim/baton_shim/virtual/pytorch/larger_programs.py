"""Features of larger programs that need more than labels: process groups, nested tensors, export, checkpoints."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from baton_shim.base import late
from baton_shim.virtual.patches import Patches
from baton_shim.virtual.pytorch.labels import look, names_cuda, put


def install(patches: Patches) -> None:
    install_distributed(patches)
    install_nested(patches)
    install_export(patches)
    install_attention(patches)
    install_checkpoints(patches)


def install_distributed(patches: Patches) -> None:
    """NCCL's operations on GPUs are done by Gloo on tensors in CPU memory."""
    distributed = torch.distributed
    begin_here = getattr(distributed, "init_process_group", None)
    if begin_here is None:
        return

    @functools.wraps(begin_here)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        return begin_here("gloo" if backend is None or "nccl" in backend else backend, *args, **kwargs)

    patches.set(distributed, "init_process_group", init_process_group)


def install_nested(patches: Patches) -> None:
    for name in ("nested_tensor", "as_nested_tensor"):
        if hasattr(getattr(torch, "nested", None), name):
            patches.set(torch.nested, name, nesting(getattr(torch.nested, name)))


def nesting(nest_here: Any) -> Any:
    @functools.wraps(nest_here)
    def nest(tensors: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        cuda = bool(look(tensors)[0]) if device is None else names_cuda(device)
        if device is None and not cuda:
            return nest_here(tensors, *args, **kwargs)
        made = nest_here(tensors, *args, device="cpu" if cuda else device, **kwargs)
        return put(made, cuda) if made.layout == torch.strided else made

    return nest


def install_export(patches: Patches) -> None:
    """Its fake tensors would call the driver, which ends the process."""
    export_here = getattr(getattr(torch, "export", None), "export", None)
    if export_here is None:
        return

    @functools.wraps(export_here)
    def export(mod: Any, args: Any = (), *rest: Any, **options: Any) -> Any:
        if look((args, list(mod.parameters())))[0]:
            raise RuntimeError(
                "torch.export of a model on the GPU needs a real GPU\n"
                "hint: use it in a %%gpu cell, or export the model from the CPU: model.cpu()"
            )
        return export_here(mod, args, *rest, **options)

    patches.set(torch.export, "export", export)


def install_attention(patches: Patches) -> None:
    """The CPU lacks some kernels among which `sdpa_kernel` chooses; the results are the same without them."""
    module = getattr(torch.nn, "attention", None)
    for name in ("_sdpa_kernel", "enable_math_sdp"):  # the function that chooses last in this version
        choose_here = getattr(module, name, None)
        if choose_here is not None:
            patches.set(module, name, with_math(choose_here))
            return


def with_math(choose_here: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(choose_here)
    def choose(*args: Any, **kwargs: Any) -> None:
        choose_here(*args, **kwargs)
        torch._C._set_sdp_use_math(True)

    return choose


def install_checkpoints(patches: Patches) -> None:
    """Activations are compared with those of the forward pass, which C++ passes on without labels."""
    module = sys.modules.get("torch.utils.checkpoint")
    if module is None:  # older versions import it when needed, which takes half a second
        late.when_imported("torch.utils.checkpoint", partial(install_checkpoints, patches))
        return
    checks = getattr(module, "_allowed_determinism_checks_to_fns", None)
    if checks is not None:
        beneath = {name: beneath_labels(check) for name, check in checks.items()}
        patches.set(module, "_allowed_determinism_checks_to_fns", beneath)


def beneath_labels(check_here: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(check_here)
    def check(tensor: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return check_here(tensor)

    return check
