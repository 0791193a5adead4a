"""The notebook kernel's end: if the course wants it, its variables are saved for the next kernel.

**Invariant:** a restart saves nothing, and a kernel that has run no `%%gpu` cell ends as without Baton. Errors are
logged, and do not keep the kernel alive for longer than Jupyter waits.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from baton_shim.base.link import LinkClosed

if TYPE_CHECKING:
    from baton_shim.notebook.home import Home


class Ending:
    """Saves the variables when the kernel is shut down."""

    def __init__(self, home: Home) -> None:
        self._home, self._process, self._restarts = home, os.getpid(), False
        kernel = home.shell.kernel
        self._do_shutdown = kernel.do_shutdown
        kernel.do_shutdown = self._shut_down
        atexit.register(self._at_exit)

    def _shut_down(self, restart: bool) -> Any:
        """Replaces the kernel's own method, which a front end's request calls."""
        self._restarts = restart
        return self._do_shutdown(restart)

    def _at_exit(self) -> None:
        if self._restarts or os.getpid() != self._process:
            return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Jupyter sends it to a slow kernel, and keeps waiting
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                self._save()
        except LinkClosed:
            pass
        except BaseException as error:
            from baton_shim.state import errors

            said = f"The notebook's variables were not saved ({type(error).__name__}: {errors.short(error)})"
            print(said, file=sys.__stderr__)

    def _save(self) -> None:
        from baton_shim.notebook.asking import ask

        home = self._home
        name = ask(home, "Asking", "ending").body["name"]
        if name is None:
            return
        home.deferred.fetch()
        home.saved_states.save_all(name)
