"""The shell and kernel that the notebook's half of this package expects, for a program that has neither.

The shell is one of IPython's around the program's own `__main__`. Its parts hold settings that are sent to the session
(printers, aliases, hooks). It runs no code.

**Invariant:** it is invisible: `get_ipython()` does not find it, and it leaves no name, file or history.
"""

from __future__ import annotations

import sys
import tempfile
import uuid
from types import SimpleNamespace
from typing import Any

from IPython.core.builtin_trap import BuiltinTrap
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell


class ProgramKernel:
    """As much of a kernel as a block needs."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.session = SimpleNamespace(session=uuid.uuid4().hex)

    def get_parent(self, channel: str | None = None) -> dict[str, Any]:
        """The request for the next block or call."""
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": self.session.session}
        return {"header": header, "content": {"allow_stdin": True}}


class ProgramShell(InteractiveShell):  # type: ignore[misc]
    """A shell that `get_ipython()` does not find."""

    profile_dir: Any = None
    """IPython 8 keeps a database here."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory(prefix="baton-") as folder:
            self.profile_dir = SimpleNamespace(location=folder)
            super().__init__(user_module=sys.modules["__main__"])
        self.kernel = ProgramKernel(self)

    def init_history(self) -> None:
        self.history_manager = HistoryManager(shell=self, parent=self, hist_file=":memory:", enabled=False)

    def init_builtins(self) -> None:
        self.builtin_trap = BuiltinTrap(shell=self)  # without the names that a shell adds to builtins

    def _leave_out(self, *arguments: Any) -> None:
        """Leaves out what only an interactive shell needs."""

    init_ipython_dir = init_profile_dir = init_virtualenv = init_sys_modules = init_user_ns = _leave_out
    init_completer = init_prompts = init_logstart = _leave_out
