"""What `autocast` computes in float32 on a GPU, but in the narrow type on the CPU.

The rules are in the mode's table only while an `autocast("cuda")` is open in some thread, so otherwise they cost
nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from baton_shim.virtual.pytorch.labels import Tensor, put
from baton_shim.virtual.pytorch.mode import RULES, Rule, VirtualCuda
from baton_shim.virtual.pytorch.rules import Args, Kwargs, present, recurrent

_NARROW = (torch.float16, torch.bfloat16)
_IN_FULL = """
    softmax log_softmax softmin layer_norm group_norm cross_entropy nll_loss kl_div l1_loss smooth_l1_loss huber_loss
    mse_loss binary_cross_entropy_with_logits cosine_similarity cosine_embedding_loss poisson_nll_loss softplus
    margin_ranking_loss triplet_margin_loss soft_margin_loss hinge_embedding_loss multi_margin_loss
    multilabel_margin_loss exp expm1 log log10 log2 log1p reciprocal rsqrt pow __pow__ __rpow__ __rdiv__ __rtruediv__
    sum prod cumsum cumprod logsumexp norm normalize vector_norm matrix_norm dist pdist cdist renorm sinh cosh tan
    asin acos erfinv
"""
_RECURRENT = "lstm gru rnn_tanh rnn_relu"
_CELLS = "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"


def in_full(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    def widened(part: Any) -> Any:
        narrow = isinstance(part, Tensor) and part.dtype in _NARROW
        return put(part.float(), mode.holds(part)) if narrow else part

    if applies(mode, args) and kwargs.get("dtype") is None:
        args, kwargs = tuple(map(widened, args)), {name: widened(part) for name, part in kwargs.items()}
    return mode.compute_with(function, args, kwargs)


def in_narrow(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """For recurrent layers, which the CPU's autocast supports only partly."""

    def narrowed(part: Any) -> Any:
        if isinstance(part, (list, tuple)):
            return type(part)(map(narrowed, part))
        wide = isinstance(part, Tensor) and part.dtype == torch.float32
        return put(part.to(narrow), mode.holds(part)) if wide else part

    compute = recurrent if function in _LAYERS else VirtualCuda.compute_with
    narrow = type_beneath() if applies(mode, args) else None
    if narrow is None:
        return compute(mode, function, args, kwargs)
    with torch.autocast("cpu", enabled=False):
        return compute(mode, function, narrowed(args), kwargs)


def unsafe(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    if applies(mode, args):
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
            "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
            "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
            "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
            "safe to autocast."
        )
    return mode.compute_with(function, args, kwargs)


def applies(mode: VirtualCuda, args: Args) -> bool:
    cuda = bool(args) and isinstance(args[0], Tensor) and mode.holds(args[0])
    return cuda and torch.is_autocast_enabled()  # in this thread


def type_beneath() -> Any:
    """The type in which the CPU's autocast computes, if it is on."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


_OWNERS = (torch, Tensor, torch.linalg, torch.nn.functional)
_LAYERS = present(torch, _RECURRENT)
_RULES: dict[Any, Rule] = {
    **{function: in_full for owner in _OWNERS for function in present(owner, _IN_FULL)},
    **dict.fromkeys(_LAYERS | present(torch, _CELLS), in_narrow),
    torch.nn.functional.binary_cross_entropy: unsafe,
}
_OTHERWISE = {function: RULES[function] for function in _RULES if function in RULES}
_OPEN: list[None] = []


def begin() -> None:
    _OPEN.append(None)
    RULES.update(_RULES)


def end() -> None:
    _OPEN.pop()
    if not _OPEN:
        for function in _RULES:
            RULES.pop(function, None)
        RULES.update(_OTHERWISE)
