"""Objects that exist once in every kernel: its shell and parts of the shell, its kernel, JAX's devices.

They are sent by reference. `ip = get_ipython()` or `from getpass import getpass` (ipykernel's own, while a cell runs)
put them into the namespace; in the other kernel, such a name refers to the other kernel's object.

Also finds whose memory a Pillow image shows, because Pillow itself does not report it.

**Invariant:** none of these objects is ever copied.
"""

from __future__ import annotations

import copyreg
import functools
import sys
from collections.abc import Callable
from typing import Any

from baton_shim.base import late


def by_reference(shell: Any) -> None:
    """Registers the references, before a kernel's first table: Python has one list of such rules, which is public."""
    refer(type(shell), lambda value: (this_shell, ()))
    refer(type(shell.kernel), lambda value: (this_kernel, ()))
    for name in PARTS:
        refer(type(getattr(shell, name)), functools.partial(as_part, name))
    for formatter in shell.display_formatter.formatters.values():
        refer(type(formatter), lambda value: (this_formatter, (value.format_type,)))
    if "jax" in sys.modules:
        jax_devices()
    else:
        late.when_imported("jax", jax_devices)


REFERRED: set[type] = set()
"""The types of these objects. What the objects hold is not sent with them."""


def refer(kind: type, reduce: Callable[[Any], tuple[Any, ...]]) -> None:
    copyreg.pickle(kind, reduce)
    REFERRED.add(kind)


def watch_images() -> None:
    """Called at the start of a kernel."""
    late.when_imported("PIL.Image", shown_memory)


class Program:
    """A plain Python program."""

    shell: Any = None
    """What replaces the shell of a kernel. IPython does not know it."""


PROGRAM = Program()


def this_shell() -> Any:
    from IPython import get_ipython

    return PROGRAM.shell or get_ipython()


# Attributes of the shell: `ip.display_formatter` and the like.
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
    refer(jax.Device, lambda device: (jax_device, (device.id,)))


def jax_device(number: int) -> Any:
    """A device of the default platform, which is the CPU in the notebook and the GPU in a session."""
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
