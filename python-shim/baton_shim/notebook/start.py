"""Starts the notebook kernel, which knows `%%gpu`.

Forked by `baton_shim.__main__`, or started as `python -m baton_shim.notebook.start -f inner.json …`.

**Invariant:** nothing of Baton is in the history, in the count or on iopub before the first `%%gpu` cell.
"""

from __future__ import annotations

import os
import sys

from baton_shim.base.launch import SHIM_SOCKET, end_with_parent, leave_notebook_folder, run_kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from baton_shim.base.local_modules import LocalModules
    from baton_shim.notebook.home import Home


def main() -> None:
    leave_notebook_folder()
    run(lambda: None)


def forked(words: int) -> None:
    """Loads its libraries while the proxy starts. The proxy then sends what it needs to know on this pipe."""
    os.environ["JPY_PARENT_PID"] = str(os.getppid())
    run(lambda: take_request(words))


def run(prepare: Callable[[], None]) -> None:
    end_with_parent("SIGTERM")
    from baton_shim.base import compat
    from baton_shim.base.compat import FIT
    from baton_shim.base.interrupts import aim_interrupts
    from baton_shim.base.local_modules import LocalModules
    from baton_shim.base.packages import Packages

    modules = LocalModules(Packages())
    FIT.attach(compat.OWN_MODULES, modules.watch)

    def shell_ready(shell: Any) -> None:
        FIT.attach(compat.INTERRUPTS, aim_interrupts, shell.kernel)
        socket_path, home = os.environ.pop(SHIM_SOCKET, None), None
        if socket_path:
            home = FIT.attach(compat.CELLS, make_home, shell, socket_path, modules)
        FIT.attach(compat.MAGICS, give_magics, shell, home, bool(socket_path))
        FIT.warn(shell)

    run_kernel(shell_ready, lambda app: prepare())


def make_home(shell: Any, socket_path: str, modules: LocalModules) -> Home:
    from functools import partial

    from baton_shim.base import compat
    from baton_shim.base.compat import FIT
    from baton_shim.base.link import Link
    from baton_shim.notebook.home import Home
    from baton_shim.notebook.outputs import Published

    published = FIT.attach(compat.ORDER, Published, shell.kernel.iopub_thread)
    return Home(shell, partial(Link.to, socket_path), modules, published=published)


def give_magics(shell: Any, home: Home | None, expected: bool) -> None:
    """`expected`: whether this kernel should have had a `home`."""
    from baton_shim.base.compat import FIT
    from baton_shim.notebook.magic import NO_PROXY, register

    register(shell, home, FIT.text() if expected and home is None else NO_PROXY)


def take_request(words: int) -> None:
    """Reads the environment, then the arguments: each ends with a zero byte, and another one separates the lists."""
    with open(words, "rb") as pipe:
        environment, end, arguments = pipe.read().partition(b"\0\0")
    if not end:  # the proxy has failed, and has reported why
        sys.exit(1)
    for entry in environment.split(b"\0"):
        name, _, value = entry.partition(b"=")
        os.environb[name] = value
    sys.argv[1:] = map(os.fsdecode, arguments.split(b"\0")[:-1])


if __name__ == "__main__":
    main()
