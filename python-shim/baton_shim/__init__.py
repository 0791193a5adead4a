"""Baton's half inside the two Python kernels: the notebook kernel and its session on a GPU machine.

**Invariant:** importing this package imports nothing else, so that a file of a student beside the notebook
(`socket.py`, `types.py`) cannot get in the way of a launcher.
"""

from __future__ import annotations

__version__ = "0.1.0"


def load_ipython_extension(shell: object) -> None:
    """`%load_ext baton_shim` in a kernel that Baton did not start: `%%gpu` exists and says what is missing."""
    from baton_shim.fitting import Fitting
    from baton_shim.magic import NO_PROXY, register

    register(shell, None, NO_PROXY, Fitting())
