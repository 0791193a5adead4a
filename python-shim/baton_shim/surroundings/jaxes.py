"""Settings of JAX: precision, checks, defaults of random numbers. Those of machines and caches stay."""

from __future__ import annotations

import enum
import re
import sys
from typing import Any

from baton_shim import late
from baton_shim.surroundings.kind import Settings, each

OF_THE_MACHINE = re.compile(
    r"jax_(?:platforms?|platform_name|backend_target|num_cpu_devices|logging_level|pjrt_.*|cpu_.*|cuda_.*|rocm_.*|"
    r"mock_.*|xla_.*|.*(?:cache|pgle|profil|distributed|binary|coordinator|preemption|transfer|cloud).*)"
)


class JaxSettings(Settings):
    """JAX does not tell its defaults, so they are noted when it is imported."""

    name, title, module = "jax", "A setting of JAX", "jax"

    def __init__(self) -> None:
        self._at_import: dict[str, Any] = {}

    def watch(self) -> None:
        """Called at the start of a kernel."""
        late.when_imported("jax", self._imported)

    def _imported(self) -> None:
        self._at_import = self.look()

    def look(self) -> dict[str, Any]:
        values: dict[str, Any] = sys.modules["jax"].config.values
        return {name: value for name, value in values.items() if travels(name, value)}

    def fresh(self) -> dict[str, Any]:
        return self._at_import

    def apply(self, difference: Any) -> list[str] | None:
        new, _ = difference
        return each(new.items(), lambda item: sys.modules["jax"].config.update(*item), self.title)


def travels(name: str, value: Any) -> bool:
    plain = value is None or isinstance(value, (bool, int, float, str, enum.Enum)) or name == "jax_default_device"
    return plain and OF_THE_MACHINE.fullmatch(name) is None


JAX = JaxSettings()
