"""What the virtual GPU says of itself: as the session's GPU did when one was last seen, else something cautious.

**Invariant:** plain values only; it travels between the kernels.
"""

from __future__ import annotations

from typing import NamedTuple


class Gpu(NamedTuple):
    name: str
    memory_bytes: int
    capability: tuple[int, int]
    multiprocessors: int


UNKNOWN = Gpu("Shared GPU (used by %%gpu cells)", 16 << 30, (8, 0), 108)
"""Before a session with a GPU has said what it has."""


class Known:
    def __init__(self) -> None:
        self.gpu = UNKNOWN


KNOWN = Known()
