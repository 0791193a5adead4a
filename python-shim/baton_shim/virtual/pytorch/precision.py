"""What `autocast` computes in float32 on a GPU, and on the CPU in the narrow type.

The rules are in the mode's table only while an `autocast("cuda")` is open in some thread; else they cost nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from baton_shim.virtual.pytorch.labels import Tensor, put
from baton_shim.virtual.pytorch.mode import RULES, Rule, VirtualCuda
from baton_shim.virtual.pytorch.rules import Args, Kwargs, present

_NARROW = (torch.float16, torch.bfloat16)
_IN_FULL = """
    softmax log_softmax softmin layer_norm group_norm cross_entropy nll_loss kl_div l1_loss smooth_l1_loss huber_loss
    mse_loss binary_cross_entropy_with_logits cosine_similarity cosine_embedding_loss poisson_nll_loss softplus
    margin_ranking_loss triplet_margin_loss soft_margin_loss exp expm1 log log10 log2 log1p reciprocal rsqrt pow
    __pow__ sum prod cumsum cumprod logsumexp norm dist cdist sinh cosh tan asin acos erfinv
"""


def in_full(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    def widened(part: Any) -> Any:
        narrow = isinstance(part, Tensor) and part.dtype in _NARROW
        return put(part.float(), mode.holds(part)) if narrow else part

    if applies(mode, args) and kwargs.get("dtype") is None:
        args, kwargs = tuple(map(widened, args)), {name: widened(part) for name, part in kwargs.items()}
    return mode.compute_with(function, args, kwargs)


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
    return cuda and torch.is_autocast_enabled()  # of this thread


_OWNERS = (torch, Tensor, torch.nn.functional)
_RULES: dict[Any, Rule] = {
    **{function: in_full for owner in _OWNERS for function in present(owner, _IN_FULL)},
    torch.nn.functional.binary_cross_entropy: unsafe,
}
_OPEN: list[None] = []


def begin() -> None:
    _OPEN.append(None)
    RULES.update(_RULES)


def end() -> None:
    _OPEN.pop()
    if not _OPEN:
        for function in _RULES:
            RULES.pop(function, None)
