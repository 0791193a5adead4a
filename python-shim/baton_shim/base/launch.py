"""How both kernels start: as with `ipykernel_launcher`, plus the private socket; and they end with their parent.

**Invariant:** apart from what it registers, a kernel started here is the one that ipykernel starts. Only `os` and `sys`
are imported before the notebook's folder is removed from the path.
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
    """Removes it from `sys.path`. IPython puts it back once the kernel has loaded its libraries (`init_path`)."""
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]


def end_with_parent(signal_name: str) -> None:
    """Linux sends the signal when the parent's thread that started this process ends. Elsewhere, ipykernel polls."""
    import signal

    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.Signals[signal_name]), 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def watch(file_descriptor: int) -> None:
    """Ends this process when the worker's end of the socket closes, as it does when the worker ends. Reads nothing."""
    import select

    poll = select.poll()
    poll.register(file_descriptor, select.POLLRDHUP)
    poll.poll()
    os._exit(1)


def run_kernel(
    shell_ready: Callable[[Any], None], prepare: Callable[[Any], None] | None = None, *, is_fork: bool = False
) -> None:
    """`ipykernel.kernelapp.launch_new_instance()`, with `shell_ready` called before extensions and start-up files.

    `prepare` may set the classes of the application. `is_fork`: the zygote's objects stay frozen.
    """
    import contextlib
    import gc

    gc.disable()  # imports leave little garbage, and searching for it takes longer than all that Baton does here
    from ipykernel.kernelapp import IPKernelApp
    from traitlets.config import Config

    # An instance of IPKernelApp itself: a subclass would move the configuration section that libraries look for.
    app = IPKernelApp.instance()
    # ipykernel sleeps for 0.5 ms after each cell, so that clients do not miss output. The proxy reads from a socket of
    # this machine and misses nothing. The student's own configuration is read later and takes precedence.
    app.update_config(Config(Kernel={"_execute_sleep": 0.0}))
    with contextlib.suppress(ImportError):  # without it, output is flushed more often, as in a plain kernel
        import baton_shim.base.streams

        app.outstream_class = f"{baton_shim.base.streams.__name__}.Stream"
    app.parent_handle = int(os.environ.get("JPY_PARENT_PID") or 0)  # ipykernel reads the variable when it is imported
    if prepare is not None:
        prepare(app)
    init_shell = getattr(app, "init_shell", None)

    def look() -> None:
        if not is_fork:  # `gc.get_freeze_count` would tell, but it takes 40 ms to count the zygote's objects
            gc.freeze()
            gc.unfreeze()  # everything is now in the oldest generation
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
