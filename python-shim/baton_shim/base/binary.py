"""Finds the program `baton`.

**Invariant:** only `os` and `sys` are imported if the program is beside the interpreter, because the start of every
kernel waits for this.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_FOUND = (
    "The program 'baton' was not found beside this Python or on PATH",
    "install it again with 'pip install --force-reinstall baton-jupyter', or set BATON_BINARY to its path",
)
"""What happened, and what to do."""


def find_binary() -> str | None:
    """The path of the program; None if it is not installed. `BATON_BINARY` takes precedence."""
    chosen = os.environ.get("BATON_BINARY")
    if chosen:
        return chosen
    for folder in folders():
        path = os.path.join(folder, "baton")
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def folders() -> Iterator[str]:
    yield os.path.dirname(sys.executable)
    # Where installers put programs that are not beside the interpreter (`pip install --user`, system Pythons).
    import sysconfig

    for scheme in (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user")):
        yield sysconfig.get_path("scripts", scheme)
    yield from (folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder)
