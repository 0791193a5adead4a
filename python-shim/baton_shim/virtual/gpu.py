"""The properties of the virtual GPU: those of the session's last known GPU, or cautious defaults.

**Invariant:** plain values only, because it is sent between the kernels.
"""

from __future__ import annotations

from typing import NamedTuple

TYPICAL: dict[str, int | str] = {
    "warp_size": 32,
    "max_threads_per_block": 1024,
    "max_threads_per_multi_processor": 2048,
    "regs_per_multiprocessor": 65536,
    "shared_memory_per_block": 48 << 10,
    "shared_memory_per_block_optin": 163 << 10,
    "shared_memory_per_multiprocessor": 164 << 10,
    "L2_cache_size": 40 << 20,
    "clock_rate": 1_410_000,
    "memory_clock_rate": 1_215_000,
    "memory_bus_width": 5120,
    "is_integrated": 0,
    "is_multi_gpu_board": 0,
    "pci_domain_id": 0,
    "pci_bus_id": 0,
    "pci_device_id": 0,
    "uuid": "00000000-0000-0000-0000-000000000000",
    "gcnArchName": "",
}
"""By torch's names; in bytes, kHz, bits."""


class Gpu(NamedTuple):
    name: str
    memory_bytes: int
    capability: tuple[int, int]
    multiprocessors: int
    details: dict[str, int | str] = TYPICAL


UNKNOWN = Gpu("Shared GPU (used by %%gpu cells)", 16 << 30, (8, 0), 108)
"""Used until a session with a GPU has reported its properties."""


class Known:
    def __init__(self) -> None:
        self.gpu = UNKNOWN


KNOWN = Known()
