"""`python -m baton_shim.notebook -f inner.json …`: starts the notebook kernel, which knows `%%gpu`.

**Invariant:** nothing of Baton is in the history, in the count or on iopub before the first `%%gpu` cell.
"""

from __future__ import annotations

import os

from baton_shim.launch import SHIM_SOCKET, end_with_parent, leave_notebook_folder, run_kernel


def main() -> None:
    leave_notebook_folder()
    end_with_parent("SIGTERM")
    socket_path = os.environ.pop(SHIM_SOCKET, None)
    from baton_shim.local_modules import LocalModules

    modules = LocalModules()
    modules.watch()

    def shell_ready(shell: object) -> None:
        from baton_shim.home import Home
        from baton_shim.magic import register

        register(shell, Home(shell, socket_path, modules) if socket_path else None)

    run_kernel(shell_ready)


if __name__ == "__main__":
    main()
