"""Random numbers of the virtual GPU: a seed and an offset, in the form that a real CUDA generator uses.

So a state can be sent to a real GPU and back, and neither seeding nor drawing on the GPU changes the CPU's stream. The
numbers themselves differ from a GPU's: each call draws from a CPU generator that is seeded with seed and offset.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from baton_shim.virtual.label import label
from baton_shim.virtual.pytorch.labels import CUDA, names_cuda, on_cuda

_STATE = struct.Struct("<Qq")  # unsigned seed, offset
DEFAULT_SEED = 67280421310721  # of every generator that torch creates
_OFFSET_STEP = 4  # a real offset is a multiple of this
_BITS = (1 << 64) - 1


class Stream:
    def __init__(self, seed: int = DEFAULT_SEED) -> None:
        self.seed, self.offset = seed & _BITS, 0

    def restart(self, seed: int) -> None:
        self.__init__(seed)  # type: ignore[misc]

    def draw(self) -> int:
        """A seed for the CPU generator of one call."""
        state = _STATE.pack(self.seed, self.offset)
        self.offset += _OFFSET_STEP
        return int.from_bytes(hashlib.blake2b(state, digest_size=8).digest(), "little", signed=True)

    def state(self) -> Any:
        return torch.frombuffer(bytearray(_STATE.pack(self.seed, self.offset)), dtype=torch.uint8)

    def set_state(self, state: Any) -> None:
        check_state(state)
        if state.numel() != _STATE.size:
            raise RuntimeError("RNG state is wrong size")
        with torch._C.DisableTorchFunction():
            self.seed, self.offset = _STATE.unpack(state.numpy().tobytes())


def check_state(state: Any) -> None:
    """Raises for anything but a CPU byte tensor, such as a state that was moved to the GPU with a checkpoint."""
    if state.dtype != torch.uint8 or on_cuda(state):
        raise TypeError("RNG state must be a torch.ByteTensor")


DEFAULT = Stream(int.from_bytes(os.urandom(8), "little"))
"""The stream that `torch.cuda.manual_seed` seeds."""


class AnyGenerator(type(torch._C.Generator)):  # type: ignore[misc]
    """Generators of C++, such as the CPU's default one, are instances of `torch.Generator`, too."""

    def __instancecheck__(cls, obj: object) -> bool:
        return isinstance(obj, torch._C.Generator) if cls is Generator else super().__instancecheck__(obj)


class Generator(torch._C.Generator, metaclass=AnyGenerator):  # type: ignore[misc]
    """`torch.Generator`. For C++, one on the GPU is a CPU generator that is seeded again for each call."""

    __module__ = "torch"

    def __new__(cls, device: Any = "cpu") -> Any:
        made = super().__new__(cls, device="cpu" if names_cuda(device) else device)
        made._stream = Stream() if names_cuda(device) else None
        made._label = label() if made._stream else None
        return made

    @property
    def device(self) -> Any:
        return super().device if self._stream is None else CUDA

    def arm(self) -> None:
        """Seeds the generator for one call."""
        super().manual_seed(self._stream.draw())

    def manual_seed(self, seed: int) -> Any:
        if self._stream is None:
            return super().manual_seed(seed)
        self._stream.restart(seed)
        return self

    def seed(self) -> int:
        if self._stream is None:
            return int(super().seed())
        self._stream.restart(int.from_bytes(os.urandom(8), "little") >> 11)
        return self.initial_seed()

    def initial_seed(self) -> int:
        return int(super().initial_seed()) if self._stream is None else self._stream.seed

    def get_state(self) -> Any:
        return super().get_state() if self._stream is None else self._stream.state()

    def set_state(self, state: Any) -> Any:
        if self._stream is None:
            check_state(state)
            return super().set_state(state)
        self._stream.set_state(state)
        return self

    def clone_state(self) -> Any:
        made = Generator(self.device)
        made.set_state(self.get_state())
        return made

    def __reduce__(self) -> Any:
        return rebuilt, (str(self.device.type), self.get_state())


def of_the_gpu() -> Generator:
    """An entry of `torch.cuda.default_generators`."""
    made: Generator = Generator("cuda")
    made._stream, made._label = DEFAULT, None  # this one always exists
    return made


def rebuilt(device: str, state: Any) -> Any:
    made = torch.Generator(device)
    made.set_state(state)
    return made


@contextmanager
def drawing() -> Iterator[None]:
    """Calls in the block without a generator draw from the GPU's stream, and the CPU's stream is restored."""
    cpu = torch.default_generator
    before = cpu.get_state()
    cpu.manual_seed(DEFAULT.draw())
    try:
        yield
    finally:
        cpu.set_state(before)
