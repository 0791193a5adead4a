"""How both kernels start: as `ipykernel_launcher` would, plus the private socket and an end with the parent.

**Invariant:** apart from what it registers, a kernel that starts here is the one that ipykernel starts. Nothing but
`os` and `sys` is imported before the notebook's folder is off the path.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SHIM_SOCKET = "BATON_SHIM_SOCKET"
_PR_SET_PDEATHSIG = 1


def leave_notebook_folder() -> None:
    """IPython puts it back on `sys.path` once the kernel has loaded its libraries (`init_path`)."""
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]


def end_with_parent(signal_name: str) -> None:
    """Linux sends the signal when the parent's thread that started this process ends; elsewhere ipykernel polls."""
    import signal

    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.Signals[signal_name]), 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def watch(file_descriptor: int) -> None:
    """Ends this process with the worker, whose end of the socket closes then. Reads nothing."""
    import select

    poll = select.poll()
    poll.register(file_descriptor, select.POLLRDHUP)
    poll.poll()
    os._exit(1)


def run_kernel(shell_ready: Callable[[Any], None], prepare: Callable[[Any], None] | None = None) -> None:
    """`ipykernel.kernelapp.launch_new_instance()`, with a look at the shell before extensions and start-up files.

    `prepare` may set the application's classes.
    """
    import contextlib
    import gc

    gc.disable()  # libraries leave no garbage worth the search, which takes longer than all that Baton does here
    from ipykernel.kernelapp import IPKernelApp
    from traitlets.config import Config

    # An instance of IPKernelApp itself: a subclass would move the configuration's section, which libraries look for.
    app = IPKernelApp.instance()
    # ipykernel rests for 0.5 ms after each cell, lest a client miss what was printed. The proxy, which reads here on a
    # socket of this machine, misses nothing. The student's own configuration is read later, and counts.
    app.update_config(Config(Kernel={"_execute_sleep": 0.0}))
    with contextlib.suppress(ImportError):  # else output is flushed more often, as in a plain kernel
        import baton_shim.base.streams

        app.outstream_class = f"{baton_shim.base.streams.__name__}.Stream"
    app.parent_handle = int(os.environ.get("JPY_PARENT_PID") or 0)  # ipykernel reads it when it is imported
    if prepare is not None:
        prepare(app)
    init_shell = getattr(app, "init_shell", None)

    def look() -> None:
        if not gc.get_freeze_count():  # in a fork of a zygote, what that has loaded stays as it is
            gc.freeze()
            gc.unfreeze()  # which leaves everything in the oldest generation
        gc.enable()
        shell_ready(app.shell)

    def init_shell_and_shim() -> None:
        assert init_shell is not None
        init_shell()
        look()

    if init_shell is not None:
        app.init_shell = init_shell_and_shim
    app.initialize()
    if init_shell is None:
        look()
    app.start()
