"""`%%both` in a session: its cells run silently, in their own namespace, before the `%%gpu` cell's state is applied.

Afterwards, everything that Baton carries from the notebook, such as random state and settings, is restored. For these,
the notebook's values are the ones that count, and they may have changed since the cell ran there.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import pickle
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from IPython.utils.capture import capture_output

from baton_shim.base.both import BothCell
from baton_shim.state.errors import short
from baton_shim.surroundings.kind import Kind
from baton_shim.surroundings.settings import kinds, put_back

if TYPE_CHECKING:
    from baton_shim.session.kernel import SessionKernel

NAME = "__both__"
"""The name of the cells' module. Not `__main__`, so that nothing in it is taken for the notebook's."""


class BothRunner:
    """Runs the `%%both` cells of one session, which share their variables."""

    def __init__(self, kernel: SessionKernel) -> None:
        self._kernel = kernel
        self._namespace: dict[str, Any] = {"__name__": NAME, "__builtins__": builtins}
        self._troubles: list[str] = []

    def run(self, cells: Iterable[BothCell]) -> None:
        """Raises only KeyboardInterrupt. Other errors are reported with the `%%gpu` cell, which still runs."""
        self._namespace["get_ipython"] = lambda: self._kernel.shell
        before: list[tuple[Kind, Any]] = []
        for kind in filter(Kind.is_here, kinds()):
            with suppress(Exception):  # a library that was patched
                before.append((kind, kind.look()))
        try:
            for cell in cells:
                self._run(cell)
        finally:
            for kind, then in before:
                with suppress(Exception):
                    put_back(kind, then)

    def take_troubles(self) -> list[str]:
        troubles, self._troubles = self._troubles, []
        return troubles

    def _run(self, cell: BothCell) -> None:
        try:
            with self._kernel.interrupts.raising(), capture_output():
                self._namespace.update(pickle.loads(cell.given))
                code = compile(cell.code, f"<%%both In[{cell.number}]>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                if code.co_flags & inspect.CO_COROUTINE:
                    raise RuntimeError("a %%both cell cannot await in a session")
                exec(code, self._namespace)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # exits too
            why = f"{type(error).__name__}: {short(error)}"
            self._troubles.append(f"The %%both cell In[{cell.number}] failed in the session ({why})")
