"""Products and convolutions: the errors of a GPU, in its words.

A GPU has no kernels for integers, which the CPU supports. The kernel that a call would use is known only when torch
dispatches it: `einsum` multiplies elements or matrices, `matmul` has four kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from baton_shim.virtual.pytorch.labels import Tensor, first_tensor

_FUNCTIONAL = torch.nn.functional
_CONVOLUTIONS = "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"
CONVOLUTIONS = {getattr(_FUNCTIONAL, name) for name in _CONVOLUTIONS.split()}
_OF_TENSORS = "matmul mm bmm mv dot vdot inner addmm addbmm baddbmm addmv matrix_power"
_OWNERS: tuple[tuple[Any, str], ...] = (
    (torch, f"{_OF_TENSORS} einsum tensordot chain_matmul"),
    (Tensor, f"{_OF_TENSORS} addmm_ addbmm_ baddbmm_ addmv_ __matmul__ __rmatmul__"),
    (torch.linalg, "matmul multi_dot matrix_power"),
    (_FUNCTIONAL, "linear bilinear"),
)
PRODUCTS = CONVOLUTIONS | {
    getattr(owner, name) for owner, names in _OWNERS for name in names.split() if hasattr(owner, name)
}
"""Calls that may end in one of the kernels below."""

_KERNELS = {
    **dict.fromkeys(("mm", "addmm", "addmm_", "addbmm", "addbmm_", "linear"), "addmm_cuda"),
    **dict.fromkeys(("bmm", "baddbmm", "baddbmm_", "_trilinear"), "baddbmm_cuda"),
    **dict.fromkeys(("mv", "addmv", "addmv_"), "addmv_impl_cuda"),
    **{name: name for name in ("dot", "vdot", "convolution")},
}
_PARAMETERS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_NAMES = {
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
}


def of_whole_numbers(args: Any) -> bool:
    """Whether a call's first tensor has integers. If others do not, torch refuses that first on any device."""
    tensor = first_tensor(args)
    return tensor is not None and tensor.dtype in _NAMES


class AsOnGpu(TorchDispatchMode):  # type: ignore[misc]
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kernel = _KERNELS.get(function._schema.name.partition("::")[2])
        kinds = {part.dtype for part in args if isinstance(part, Tensor)}
        if kernel is not None and len(kinds) == 1 and (name := _NAMES.get(*kinds)):
            raise no_kernel(kernel, name)
        return function(*args, **(kwargs or {}))


def no_kernel(kernel: str, name: str) -> RuntimeError:
    if kernel != "convolution":
        return NotImplementedError(f"\"{kernel}\" not implemented for '{name}'")
    if name in ("Int", "Byte"):  # cuDNN knows these types
        return RuntimeError("GET was unable to find an engine to execute this computation")
    return RuntimeError(f"getCudnnDataTypeFromScalarType() not supported for {name}")


def two_devices(function: Any, holds: Callable[[Any], bool], args: Any, kwargs: Any) -> RuntimeError:
    """The error for a convolution whose tensors are on two devices."""
    named = dict(zip(_PARAMETERS, args, strict=False)) | kwargs
    source, weight = named["input"], named["weight"]
    other = "weight" if holds(source) != holds(weight) else "bias"
    types = [type_name(part, holds(part)) for part in (source, named[other])]
    text = f"Input type ({types[0]}) and {other} type ({types[1]}) should be the same"
    if other == "weight" and not holds(source):
        if is_small(function, named):
            return RuntimeError(
                "Expected all tensors to be on the same device, but got weight is on cuda:0, different from other "
                "tensors on cpu (when checking argument in method wrapper_CUDA___slow_conv2d_forward)"
            )
        text += " or input should be a MKLDNN tensor and weight is a dense tensor"
    return RuntimeError(text)


def is_small(function: Any, named: dict[str, Any]) -> bool:
    """Whether torch uses its own kernel for this convolution of an input on the CPU, which does not check types."""
    if function not in (_FUNCTIONAL.conv1d, _FUNCTIONAL.conv2d):
        return False
    source, weight = (torch.empty(named[name].shape, device="cpu") for name in ("input", "weight"))
    dimensions = weight.dim() - 2

    def each(name: str, otherwise: int) -> list[int]:
        value = named.get(name, otherwise)
        return [value] * dimensions if isinstance(value, int) else [int(one) for one in value]

    padding = [0] * dimensions if isinstance(named.get("padding"), str) else each("padding", 0)
    arguments = each("stride", 1), padding, each("dilation", 1), False, [0] * dimensions, named.get("groups", 1)
    batch = source if source.dim() == weight.dim() else source[None]
    select: Any = torch._C._select_conv_backend
    return str(select(batch, weight, None, *arguments)).endswith("Slow2d")


def type_name(tensor: Any, cuda: bool) -> str:
    name: str = tensor.type()
    return name.replace("torch.", "torch.cuda.", 1) if cuda else name
