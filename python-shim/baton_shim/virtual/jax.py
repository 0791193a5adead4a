"""Virtual CUDA for JAX: its CPU answers to the name of the GPU, and JAX computes there.

Arrays and devices still print as those of a CPU. In a session with a GPU they are on the GPU, because arrays arrive on
the default device.
"""

from __future__ import annotations

import functools
from typing import Any

from baton_shim.virtual.patches import Patches

_GPU, _CPU = "cuda", "cpu"


def install(patches: Patches) -> None:
    import jax
    from jax._src import xla_bridge

    backends_here = xla_bridge.backends

    @functools.wraps(backends_here)
    def backends() -> dict[str, Any]:
        found: dict[str, Any] = backends_here()
        if _GPU not in found and _CPU in found and jax.config.jax_platforms != _CPU:
            found[_GPU] = found[_CPU]
            patches.on_undo(lambda: forget(found))
        return found

    def default_backend() -> str:
        return "gpu" if backends().get(_GPU) is xla_bridge.get_backend() else str(xla_bridge.default_backend())

    patches.set(xla_bridge, "backends", backends)
    patches.set(jax, "default_backend", default_backend)
    if xla_bridge.backends_are_initialized():  # JAX was imported and used before virtual CUDA was switched on
        backends()
        xla_bridge.get_backend.cache_clear()

    def forget(found: dict[str, Any]) -> None:
        if found.get(_GPU) is found.get(_CPU):
            found.pop(_GPU, None)
            xla_bridge.get_backend.cache_clear()
