"""The objects that every kernel has one of: its shell and parts of that, its kernel, JAX's devices. They travel by
reference.
And whose memory an image of Pillow shows, which Pillow itself tells nobody.

`ip = get_ipython()` or `from getpass import getpass` (ipykernel's own, while a cell runs) put them into the namespace;
in the other kernel such a name means the other kernel's.

**Invariant:** none of them is ever copied.
"""

from __future__ import annotations

import copyreg
import functools
import sys
from typing import Any

from baton_shim.base import late


def by_reference(shell: Any) -> None:
    """Called before the first table of a kernel, because Python has one list of such rules, which programs may read."""
    copyreg.pickle(type(shell), lambda value: (this_shell, ()))
    copyreg.pickle(type(shell.kernel), lambda value: (this_kernel, ()))
    for name in PARTS:
        copyreg.pickle(type(getattr(shell, name)), functools.partial(as_part, name))
    for formatter in shell.display_formatter.formatters.values():
        copyreg.pickle(type(formatter), lambda value: (this_formatter, (value.format_type,)))
    if "jax" in sys.modules:
        jax_devices()
    else:
        late.when_imported("jax", jax_devices)


def watch_images() -> None:
    """Called when a kernel starts."""
    late.when_imported("PIL.Image", shown_memory)


class Program:
    """A plain Python program."""

    shell: Any = None
    """What stands for a kernel's shell. IPython does not know it."""


PROGRAM = Program()


def this_shell() -> Any:
    from IPython import get_ipython

    return PROGRAM.shell or get_ipython()


# What `ip.display_formatter` and the like are.
PARTS = ("display_formatter", "display_pub", "displayhook", "history_manager", "magics_manager", "events")


def as_part(name: str, value: Any) -> tuple[Any, ...]:
    return this_part, (name,)


def this_part(name: str) -> Any:
    return getattr(this_shell(), name)


def this_formatter(format_type: str) -> Any:
    return this_shell().display_formatter.formatters[format_type]


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


def shown_memory() -> None:
    image: Any = sys.modules["PIL.Image"]
    show = image.frombuffer

    @functools.wraps(show)
    def frombuffer(mode: str, size: Any, data: Any, decoder_name: str = "raw", *args: Any) -> Any:
        made = show(mode, size, data, decoder_name, *args)
        if made.readonly:
            made._baton_shows = (made.im, data, args)
        return made

    image.frombuffer = frombuffer
