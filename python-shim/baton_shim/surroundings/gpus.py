"""Whether `cuda` is virtual on a machine without a GPU, and the properties of the session's GPU."""

from __future__ import annotations

import sys
from typing import Any

from baton_shim.base.gpu_facts import ASKING
from baton_shim.surroundings.kind import Kind, rows
from baton_shim.virtual import SWITCH
from baton_shim.virtual.gpu import KNOWN, TYPICAL, UNKNOWN, Gpu


def gpu_model(_: Any) -> Gpu | None:
    """The properties that virtual CUDA reports, from the session's driver or its torch."""
    torch: Any = sys.modules.get("torch")
    found = ASKING.answer()
    if SWITCH.real and torch is not None and torch.cuda.is_initialized():
        properties = torch.cuda.get_device_properties(0)
        found = {name: plain(getattr(properties, name)) for name in (*OF_ALL, *TYPICAL) if hasattr(properties, name)}
    if found is not None:
        KNOWN.gpu = as_found(found)
    return None if KNOWN.gpu is UNKNOWN else KNOWN.gpu


def give_gpu_model(_: Any, model: Gpu | None) -> None:
    KNOWN.gpu = UNKNOWN if model is None else model


OF_ALL = ("name", "total_memory", "major", "minor", "multi_processor_count")


def as_found(found: dict[str, Any]) -> Gpu:
    """`found` is keyed by torch's names."""
    name, memory, major, minor, count = (found[name] for name in OF_ALL)
    return Gpu(name, memory, (major, minor), count, {name: found.get(name, value) for name, value in TYPICAL.items()})


def plain(value: Any) -> int | str:
    """A GPU's identity is an object of torch, so it becomes text."""
    return value if isinstance(value, (int, str)) else str(value)


(ON,) = rows("Virtual CUDA", "baton_shim.virtual", ("on", lambda _: SWITCH.on, lambda _, on: SWITCH.turn(on), True))
(MODEL,) = rows("The description of the GPU", "baton_shim.virtual", ("gpu", gpu_model, give_gpu_model, None))
GPUS: tuple[Kind, ...] = (ON, MODEL._replace(found=True))
