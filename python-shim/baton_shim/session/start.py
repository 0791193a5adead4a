"""`python -m baton_shim.session.start`: starts the kernel of a session.

**Invariant:** the session ends when its worker ends, also between cells.
"""

from __future__ import annotations

import os
import sys

from baton_shim.base.launch import end_with_parent, leave_notebook_folder, run_kernel, watch
from baton_shim.session import confinement
from baton_shim.session.supervisor import supervise

DEBUGGER = "debugpy"
SHIM_DESCRIPTOR = "BATON_SHIM_DESCRIPTOR"
"""The variable with the number of the open connection to the worker."""
TRIAL = "BATON_TRIAL"
"""Set by a worker that only checks whether cells run here."""
NO_GPU = "nvidia-smi: this worker has no GPU, so your %%gpu cells compute on its processor"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(*, is_fork: bool = False) -> None:
    """`is_fork`: this process is a fork of a zygote."""
    leave_notebook_folder()
    supervise()
    confinement.confine()
    end_with_parent("SIGKILL")
    leave_out_debugger()
    from baton_shim.base import packages

    installed = packages.begin()
    trial = os.environ.pop(TRIAL, "") == "1"
    from baton_shim.base.gpu_facts import ASKING
    from baton_shim.base.mirror import work_in_mirror
    from baton_shim.session.sigterm import outlive_sigterm
    from baton_shim.virtual import machine_has_gpu

    if machine_has_gpu():
        ASKING.begin()  # while everything else is loaded
    elif installed.overlay is not None:
        installed.overlay.make_program("nvidia-smi", f"echo '{NO_GPU}' >&2\nexit 9\n")
    work_in_mirror()
    outlive_sigterm()
    import threading

    from baton_shim.base.link import Link
    from baton_shim.base.local_modules import LocalModules
    from baton_shim.session.kernel import SessionKernel
    from baton_shim.session.sockets import give_no_addresses

    modules = LocalModules(installed)
    modules.watch()
    link = Link.inherited(int(os.environ.pop(SHIM_DESCRIPTOR)))
    threading.Thread(target=watch, args=(link.fileno(),), name="baton-worker-watch", daemon=True).start()

    def prepare(app: Any) -> None:
        app.kernel_class = SessionKernel
        give_no_addresses(app)

    def shell_ready(shell: Any) -> None:
        del sys.modules[DEBUGGER]  # the student may import it
        shell.kernel.join(link, modules)
        if trial:
            shell.kernel.try_a_cell()

    run_kernel(shell_ready, prepare, is_fork=is_fork)


def leave_out_debugger() -> None:
    """ipykernel would load a debugger, which takes a fifth of its start and has no client in a session."""
    sys.modules[DEBUGGER] = None  # type: ignore[assignment]


if __name__ == "__main__":
    main()
