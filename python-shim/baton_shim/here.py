"""The objects that every kernel has one of: its shell, its kernel, JAX's devices. They travel by reference.

`ip = get_ipython()` or `from getpass import getpass` (ipykernel's own, while a cell runs) put them into the namespace;
in the other kernel such a name means the other kernel's.

**Invariant:** none of them is ever copied.
"""

from __future__ import annotations

import copyreg
import sys
from typing import Any

from baton_shim import late


def by_reference(shell: Any) -> None:
    copyreg.pickle(type(shell), lambda value: (this_shell, ()))
    copyreg.pickle(type(shell.kernel), lambda value: (this_kernel, ()))
    late.when_imported("jax", jax_devices)


def this_shell() -> Any:
    from IPython import get_ipython

    return get_ipython()


def this_kernel() -> Any:
    return this_shell().kernel


def jax_devices() -> None:
    jax: Any = sys.modules["jax"]
    copyreg.pickle(jax.Device, lambda device: (jax_device, (device.id,)))


def jax_device(number: int) -> Any:
    """A device of the default platform: in the notebook it goes by the names of the CPU and of the GPU."""
    import jax

    devices: list[Any] = jax.devices()
    return devices[number if number < len(devices) else 0]
