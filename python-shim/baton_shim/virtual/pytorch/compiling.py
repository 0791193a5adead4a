"""`torch.compile`: its result is the same as on a GPU machine, but here it runs without compilation.

So a compiled module has the same type, text and `state_dict` names as there, and its options are sent with it.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any

import torch

from baton_shim.base import late
from baton_shim.virtual.patches import Patches

_NO_TRITON = "triton not found"


def install(patches: Patches) -> None:
    if hasattr(getattr(torch, "compiler", None), "set_stance"):
        when_loaded(patches)
    elif hasattr(torch, "compile"):  # before 2.6
        patches.set(torch, "compile", not_compiled)


def when_loaded(patches: Patches) -> None:
    """Acts only when torch's compiler is loaded, because loading it takes seconds."""
    logger = logging.getLogger("torch.utils.flop_counter")
    logger.addFilter(is_of_use)
    patches.on_undo(lambda: logger.removeFilter(is_of_use))
    waiting = [patches]
    patches.on_undo(waiting.clear)
    if "torch._dynamo" in sys.modules:
        run_eagerly(waiting)
    else:
        late.when_imported("torch._dynamo", functools.partial(run_eagerly, waiting))


def run_eagerly(waiting: list[Patches]) -> None:
    for patches in waiting:
        stance = torch.compiler.set_stance("force_eager")
        patches.on_undo(functools.partial(stance.__exit__, None, None, None))


def is_of_use(record: logging.LogRecord) -> bool:
    """Hides warnings about what only this machine lacks."""
    return _NO_TRITON not in record.getMessage()


def not_compiled(model: Any = None, **options: Any) -> Any:
    if model is None:
        return functools.partial(not_compiled, **options)
    if not isinstance(model, torch.nn.Module):
        return model
    from torch import _dynamo

    return _dynamo.disable(model)
