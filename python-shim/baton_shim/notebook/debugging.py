"""Explains what the debuggers of a notebook can do for `%%gpu` cells.

**Invariant:** only looks; a `%%gpu` cell never makes a debugger of the notebook stop in Baton's own frames.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from baton_shim.surroundings import warn

BREAKPOINTS = (
    "Breakpoints do not stop a %%gpu cell, which runs in another process\n"
    "hint: with %pdb on, an error in it opens the debugger; %debug in a %%gpu cell does so afterwards"
)
FRAMES = (
    "This error came from a %%gpu cell; its frames are in the session, not here\n"
    "hint: run %debug in a %%gpu cell, as long as the session lives (%gpu_status)"
)


def warn_of_breakpoints(shell: Any, code: str) -> None:
    """Warns if a front end has set breakpoints in this cell."""
    lists = getattr(getattr(shell.kernel, "debugger", None), "breakpoint_list", None)
    if lists:
        from ipykernel.compiler import get_file_name

        if lists.get(get_file_name(code)):
            warn(BREAKPOINTS)


def wrap_debugger(shell: Any) -> None:
    """Replaces `%debug` after the error of a `%%gpu` cell by a hint: it works only in a `%%gpu` cell."""
    debug_here = shell.debugger

    @functools.wraps(debug_here)
    def debugger(force: bool = False) -> None:
        from baton_shim.state import errors

        error = getattr(sys, "last_value", None)
        if force and isinstance(error, BaseException) and errors.rendered(error) is not None:
            sys.stderr.write(f"{FRAMES}\n")
        else:
            debug_here(force)

    shell.debugger = debugger
