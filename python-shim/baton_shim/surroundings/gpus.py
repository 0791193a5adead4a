"""Whether `cuda` is virtual where there is no GPU, and what the GPU of the session is."""

from __future__ import annotations

import sys
from typing import Any

from baton_shim.surroundings.kind import Kind
from baton_shim.virtual import SWITCH
from baton_shim.virtual.gpu import KNOWN, TYPICAL, UNKNOWN, Gpu


class VirtualCuda(Kind):
    name, title, whole = "virtual", "Virtual CUDA", True

    def look(self) -> bool:
        return SWITCH.on

    def fresh(self) -> bool:
        return True

    def apply(self, difference: Any) -> None:
        SWITCH.turn(difference)


class GpuModel(Kind):
    """What virtual CUDA says of its GPU: as the session's is, once a cell has used it."""

    name, title, whole = "gpu", "The description of the GPU", True

    def look(self) -> Gpu | None:
        torch: Any = sys.modules.get("torch")
        if SWITCH.real and torch is not None and torch.cuda.is_initialized():
            found = torch.cuda.get_device_properties(0)
            capability = (found.major, found.minor)
            details = {name: plain(getattr(found, name, value)) for name, value in TYPICAL.items()}
            KNOWN.gpu = Gpu(found.name, found.total_memory, capability, found.multi_processor_count, details)
        return None if KNOWN.gpu is UNKNOWN else KNOWN.gpu

    def fresh(self) -> None:
        return None

    def apply(self, difference: Any) -> None:
        KNOWN.gpu = difference


def plain(value: Any) -> int | str:
    """The identity of a GPU is an object of torch's."""
    return value if isinstance(value, (int, str)) else str(value)


GPUS: tuple[Kind, ...] = (VirtualCuda(), GpuModel())
