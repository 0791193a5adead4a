"""Fourier transforms in float16: a GPU computes them for powers of two, the CPU does not support them."""

from __future__ import annotations

from typing import Any

import torch

from baton_shim.virtual.pytorch.labels import Tensor
from baton_shim.virtual.pytorch.mode import VirtualCuda
from baton_shim.virtual.pytorch.rules import Args, Kwargs, present, rule

_OF_ONE = present(torch.fft, "fft ifft rfft irfft hfft ihfft")
_OF_TWO = present(torch.fft, "fft2 ifft2 rfft2 irfft2 hfft2 ihfft2")
_OF_ALL = present(torch.fft, "fftn ifftn rfftn irfftn hfftn ihfftn")
_TO_REAL = present(torch.fft, "irfft hfft irfft2 hfft2 irfftn hfftn")
_WIDE = {torch.float16: torch.float32, torch.complex32: torch.complex64}
_NARROW = {wide: narrow for narrow, wide in _WIDE.items()}


@rule(*_OF_ONE, *_OF_TWO, *_OF_ALL)
def transform(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    source = args[0] if args else kwargs.get("input")
    if not (isinstance(source, Tensor) and source.dtype in _WIDE and mode.holds(source)):
        return mode.compute_with(function, args, kwargs)
    asked = dict(zip(("input", "n" if function in _OF_ONE else "s", "dim", "norm"), args, strict=False)) | kwargs
    sizes = signal(function, source, asked.get("n", asked.get("s")), asked.get("dim"))
    if any(size & (size - 1) for size in sizes):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, "
            f"but got a signal size of{sizes}"
        )
    result = mode.run(function, (), {**asked, "input": source.to(_WIDE[source.dtype])})
    return mode.run(Tensor.to, (result, _NARROW[result.dtype]), {})


def signal(function: Any, source: Any, lengths: Any, dims: Any) -> list[int]:
    """The lengths of the transformed dimensions; if the result is real, those of the result."""
    if function in _OF_ONE:
        lengths, dims = None if lengths is None else [lengths], [-1 if dims is None else dims]
    elif function in _OF_TWO and dims is None:
        dims = [-2, -1]
    elif dims is None:
        dims = range(-len(lengths) if lengths is not None else -source.dim(), 0)
    sizes = [source.shape[dim] for dim in dims]
    if function in _TO_REAL:
        sizes[-1] = 2 * (sizes[-1] - 1)
    return [here if asked in (None, -1) else asked for here, asked in zip(sizes, lengths or sizes, strict=False)]
