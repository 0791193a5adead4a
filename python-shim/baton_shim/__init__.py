"""Baton's code inside the two Python kernels: the notebook kernel, and its session on a GPU machine.

**Invariant:** importing this package imports nothing but its own version, so a student's file beside the notebook
(`socket.py`, `types.py`) cannot break a launcher.
"""

from __future__ import annotations

from baton_shim.base.version import __version__ as __version__


def load_ipython_extension(shell: object) -> None:
    """`%load_ext baton_shim` in a kernel that Baton did not start: defines a `%%gpu` that says what is missing."""
    from baton_shim.notebook.magic import NO_PROXY, register

    register(shell, None, NO_PROXY)
