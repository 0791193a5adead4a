"""The objects that every kernel has one of: its shell and its kernel. They travel by reference.

`ip = get_ipython()` or `from getpass import getpass` (ipykernel's own, while a cell runs) put them into the namespace;
in the other kernel such a name means the other kernel's.

**Invariant:** neither is ever copied.
"""

from __future__ import annotations

import copyreg
from typing import Any


def by_reference(shell: Any) -> None:
    copyreg.pickle(type(shell), lambda value: (this_shell, ()))
    copyreg.pickle(type(shell.kernel), lambda value: (this_kernel, ()))


def this_shell() -> Any:
    from IPython import get_ipython

    return get_ipython()


def this_kernel() -> Any:
    return this_shell().kernel
