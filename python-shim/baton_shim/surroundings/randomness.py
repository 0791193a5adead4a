"""The global random generators: each continues in this kernel where it stopped in the other one."""

from __future__ import annotations

import pickle
import sys
from typing import Any

from baton_shim.surroundings.kind import Kind, rows


def numpy_state(random: Any) -> bytes:
    """Includes the second normal number that numpy keeps for the next call: `set_state` may change only that."""
    return pickle.dumps(random.get_state(legacy=False), protocol=5)


class TorchRandom:
    """The CPU's generator and, if a GPU is in use, those of the GPUs.

    Without a GPU, their states are kept for the other end, until something sets a new seed.
    """

    def __init__(self) -> None:
        self._kept: tuple[int, list[bytes]] | None = None

    def look(self, torch: Any) -> Any:
        seed = torch.initial_seed()
        return seed, torch.get_rng_state().numpy().tobytes(), self._of_gpus(torch, seed)

    def _of_gpus(self, torch: Any, seed: int) -> list[bytes] | None:
        if torch.cuda.is_initialized():
            return [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()]
        if self._kept is not None and self._kept[0] == seed:
            return self._kept[1]
        return None

    def apply(self, torch: Any, difference: Any) -> None:
        seed, cpu, gpus, seeded = difference
        torch.set_rng_state(as_tensor(torch, cpu))
        self._kept = None if gpus is None else (seed, gpus)
        if not torch.cuda.is_available():
            return
        if gpus is None and seeded:
            torch.cuda.manual_seed_all(seed)
        for number, state in enumerate((gpus or [])[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(as_tensor(torch, state), number)


def as_tensor(torch: Any, state: bytes) -> Any:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def tensorflow_state(context: Any) -> tuple[Any, Any] | None:
    """None if the context of TensorFlow has not been created yet."""
    found = context.context_safe()
    if found is None or found._seed is None:
        return None
    return found._seed, found._rng.getstate()


def set_tensorflow_state(context: Any, state: tuple[Any, Any] | None) -> None:
    seed, generator = state or (None, None)
    context.set_global_seed(seed)
    if generator is not None:
        context.context_safe()._rng.setstate(generator)


def keras_state(kept: Any) -> tuple[Any, tuple[int, ...] | None]:
    """The seed of Keras 3, and the state of the generator from which its layers and `keras.random` draw."""
    generator = kept.get_global_attribute("global_seed_generator")
    state = generator and tuple(sys.modules["keras"].ops.convert_to_numpy(generator.state).tolist())
    return kept.get_global_attribute("global_random_seed"), state


def set_keras_state(kept: Any, seed_and_state: tuple[Any, tuple[int, ...] | None]) -> None:
    seed, state = seed_and_state
    generator = None
    if state is not None:
        generator = sys.modules["keras"].random.SeedGenerator(0)  # without a seed it would draw from `random`
        generator.state.assign(state)
    kept.set_global_attribute("global_random_seed", seed)
    kept.set_global_attribute("global_seed_generator", generator)


def and_whether_seeded(before: Any, now: Any) -> Any:
    return (*now, before is None or before[0] != now[0])


TORCH = TorchRandom()

# Each process seeds these randomly.
RANDOMNESS: tuple[Kind, ...] = (
    *rows("The state of 'random'", "random", ("state", "getstate", "setstate", None)),
    *rows(
        *("The state of 'numpy.random'", "numpy.random"),
        ("state", numpy_state, lambda random, state: random.set_state(pickle.loads(state)), None),
    ),
    Kind(
        *("torch.random", "The state of torch's generators", "torch", TORCH.look, TORCH.apply, None),
        difference=and_whether_seeded,
    ),
    Kind(
        *("tensorflow.random", "The seed of TensorFlow", "tensorflow.python.eager.context"),
        *(tensorflow_state, set_tensorflow_state, None),
    ),
    Kind(
        *("keras.random", "The seed of Keras", "keras.src.backend.common.global_state"),
        *(keras_state, set_keras_state, (None, None)),
    ),
)
