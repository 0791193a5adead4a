"""The global random generators: the one of the other kernel continues in this one."""

from __future__ import annotations

import pickle
import sys
from typing import Any

from baton_shim.surroundings.kind import Kind


class Generator(Kind):
    whole = True

    def fresh(self) -> Any:
        return None  # seeded by chance in each process


class PythonRandom(Generator):
    name, title, module = "random", "The state of 'random'", "random"

    def look(self) -> Any:
        return sys.modules["random"].getstate()

    def apply(self, difference: Any) -> None:
        sys.modules["random"].setstate(difference)


class NumpyRandom(Generator):
    name, title, module = "numpy.random", "The state of 'numpy.random'", "numpy.random"

    def __init__(self) -> None:
        self._raw: bytes | None = None
        self._found = b""

    def look(self) -> Any:
        raw = self._memory()
        if raw is None or raw != self._raw:
            state = sys.modules["numpy.random"].get_state(legacy=False)
            self._found = pickle.dumps(state, protocol=5)
            self._raw = None if state.get("has_gauss") else raw
        return self._found

    def _memory(self) -> bytes | None:
        """All that a draw changes, except a second normal number that is kept for the next call."""
        generator = sys.modules["numpy.random"].get_bit_generator()
        if type(generator).__name__ != "MT19937":
            return None
        import ctypes

        return ctypes.string_at(generator.ctypes.state_address, 625 * 4)

    def apply(self, difference: Any) -> None:
        sys.modules["numpy.random"].set_state(pickle.loads(difference))


class TorchRandom(Generator):
    """The CPU's generator and, where a GPU is in use, those of the GPUs.

    Where none is, their states are kept for the other end; they are void as soon as something seeds anew.
    """

    name, title, module = "torch.random", "The state of torch's generators", "torch"

    def __init__(self) -> None:
        self._kept: tuple[int, list[bytes]] | None = None

    def look(self) -> Any:
        torch: Any = sys.modules["torch"]
        seed = torch.initial_seed()
        return seed, torch.get_rng_state().numpy().tobytes(), self._of_gpus(torch, seed)

    def _of_gpus(self, torch: Any, seed: int) -> list[bytes] | None:
        if torch.cuda.is_initialized():
            return [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()]
        if self._kept is not None and self._kept[0] == seed:
            return self._kept[1]
        return None

    def difference(self, before: Any, now: Any) -> Any:
        return (*now, before is None or before[0] != now[0])

    def apply(self, difference: Any) -> None:
        torch: Any = sys.modules["torch"]
        seed, cpu, gpus, seeded = difference
        torch.set_rng_state(as_tensor(torch, cpu))
        if gpus is not None:
            self._kept = (seed, gpus)
        if not torch.cuda.is_available():
            return
        if gpus is None and seeded:
            torch.cuda.manual_seed_all(seed)
        for number, state in enumerate((gpus or [])[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(as_tensor(torch, state), number)


def as_tensor(torch: Any, state: bytes) -> Any:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


RANDOMNESS: tuple[Kind, ...] = (PythonRandom(), NumpyRandom(), TorchRandom())
