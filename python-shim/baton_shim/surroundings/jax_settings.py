"""Settings of JAX: precision, checks, defaults for random numbers. Settings of machines and caches are not sent.

Also the notebook's classes that are registered as tree nodes: JAX does not list them, so registrations are recorded.
"""

from __future__ import annotations

import enum
import functools
import re
import sys
from contextlib import suppress
from typing import Any

from baton_shim.base import late
from baton_shim.surroundings.kind import entries

OF_THE_MACHINE = re.compile(
    r"jax_(?:platforms?|platform_name|backend_target|num_cpu_devices|logging_level|pjrt_.*|cpu_.*|cuda_.*|rocm_.*|"
    r"mock_.*|xla_.*|.*(?:cache|pgle|profil|distributed|binary|coordinator|preemption|transfer|cloud).*)"
)

REGISTER = (
    "register_pytree_node register_pytree_node_class register_pytree_with_keys register_pytree_with_keys_class "
    "register_dataclass register_static"
).split()
Node = tuple[str, tuple[Any, ...], dict[str, Any]]
"""The name of the function that registered a class, and its arguments."""


class Jax:
    """JAX does not report its defaults, so they are recorded when it is imported."""

    def __init__(self) -> None:
        self._at_import: dict[str, Any] = {}
        self.nodes: list[Node] = []
        self._registering = False

    def watch(self) -> None:
        """Called at the start of a kernel."""
        late.when_imported("jax", self._imported)

    def _imported(self) -> None:
        self._at_import = settings(sys.modules["jax"])
        for name in REGISTER:
            self._note(name)

    def _note(self, name: str) -> None:
        inner: Any = sys.modules["jax._src.tree_util"]
        register = getattr(inner, name, None)
        if register is None:  # removed in a newer JAX
            return

        @functools.wraps(register)
        def noted(*arguments: Any, **named: Any) -> Any:
            outermost, self._registering = not self._registering, True
            try:
                result = register(*arguments, **named)
            finally:
                self._registering = not outermost
            kind = arguments[0] if arguments else next(iter(named.values()), None)
            if outermost and getattr(kind, "__module__", "") == "__main__":
                self.nodes.append((name, arguments, named))
            return result

        for module in (inner, sys.modules["jax.tree_util"]):
            setattr(module, name, noted)

    def register(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Repeats a registration of the other end."""
        import jax

        kind = (*arguments, *named.values())[0]
        if all(kind is not (*known, *others.values())[0] for _, known, others in self.nodes):
            with suppress(ValueError):  # a library has registered the class when it was created here
                getattr(jax.tree_util, name)(*arguments, **named)

    def fresh(self, _: Any) -> dict[str, Any]:
        return self._at_import


def settings(jax: Any) -> dict[str, Any]:
    return {name: value for name, value in jax.config.values.items() if is_sent(name, value)}


def is_sent(name: str, value: Any) -> bool:
    plain = value is None or isinstance(value, (bool, int, float, str, enum.Enum)) or name == "jax_default_device"
    return plain and OF_THE_MACHINE.fullmatch(name) is None


JAX = Jax()
JAX_SETTINGS = entries(
    *("jax", "A setting of JAX", "jax", settings, lambda jax, name, value: jax.config.update(name, value)),
    fresh=JAX.fresh,
)
