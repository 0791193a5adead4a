"""torch's gradient scalers, whose own pickling fails between `unscale_` and `update`.

In between, a scaler has a stage for each optimizer, under the optimizer's `id`, which differs in the other kernel.
"""

from __future__ import annotations

import collections
import gc
from collections.abc import Iterator
from typing import Any

from baton_shim.state.kinds.base import Here, State, imported
from baton_shim.state.kinds.frames import WholeKind, is_optimizer_type

_STAGES = "_per_optimizer_states"


class ScalerKind(WholeKind):
    """Its attributes, and each optimizer with its stage."""

    name = "scaler"

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new, self.apply)

    def is_blind(self, obj: Any) -> bool:
        return True

    def reduce(self, obj: Any) -> Any:
        new, apply = self._anchors
        return new, (type(obj),), self.read(obj), None, None, apply

    def lasting(self, obj: Any) -> dict[str, Any]:
        return {name: value for name, value in vars(obj).items() if name != _STAGES}

    def read(self, obj: Any) -> State:
        return *super().read(obj), stages_of(obj)

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        *attributes, stages = state
        yield from super().parts(obj, attributes)
        yield from stages

    def apply(self, obj: Any, content: Any) -> None:
        *attributes, stages = content
        super().apply(obj, attributes)
        if stages:
            first, *pairs = stages
            by_id = zip(map(id, pairs[::2]), pairs[1::2], strict=True)
            vars(obj)[_STAGES] = collections.defaultdict(first, by_id)


def is_scaler_type(kind: type) -> bool:
    before_torch_2_3 = imported("torch.cuda.amp.grad_scaler", "GradScaler")
    return issubclass(kind, (imported("torch.amp.grad_scaler", "GradScaler"), before_torch_2_3))


def stages_of(scaler: Any) -> tuple[Any, ...]:
    """The function that makes a first stage, then each optimizer and its stage; empty for a disabled scaler."""
    stages = vars(scaler).get(_STAGES)
    if stages is None:
        return ()
    known = {id(one): one for one in gc.get_objects() if is_optimizer_type(type(one))} if stages else {}
    pairs = ((known[number], stage) for number, stage in stages.items() if number in known)
    return stages.default_factory, *(part for pair in pairs for part in pair)
