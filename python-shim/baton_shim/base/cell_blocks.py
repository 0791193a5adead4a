"""`with gpu:` in cells: the blocks are taken out of the code before IPython compiles it.

**Invariant:** a cell's syntax tree is examined only if `baton` has been imported or the cell mentions it.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
from typing import Any

from IPython.core.error import InputRejected

from baton_shim.base.blocks import RUNTIME, Gpu, Kernel

PACKAGE = "baton"
MENTIONED = re.compile(rf"\b{PACKAGE}\b")


class BlockRefused(SyntaxError, InputRejected):  # type: ignore[misc]
    """A block that cannot run remotely. IPython shows it as a syntax error and runs no part of the cell."""


BlockRefused.__name__ = BlockRefused.__qualname__ = "SyntaxError"


def begin(kernel: Kernel, shell: Any) -> None:
    """`kernel` is what the package `baton` uses in this process."""
    taking_out = TakeOut(shell)

    def cell_begins(info: Any) -> None:
        if MENTIONED.search(info.raw_cell or ""):
            install()

    def install() -> None:
        if taking_out not in shell.ast_transformers:
            shell.ast_transformers.append(taking_out)

    RUNTIME.kernel, RUNTIME.imported = kernel, install
    shell.events.register("pre_run_cell", cell_begins)


class TakeOut(ast.NodeTransformer):
    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def visit(self, node: ast.AST) -> ast.AST:
        from baton_shim.base.with_gpu import transformed

        if not isinstance(node, ast.Module):
            return node
        try:
            return transformed(node, self._is_gpu, cell=True, flags=self._shell.compile.flags)
        except SyntaxError as error:
            raise self._in_cell(error) from None

    def _is_gpu(self, name: str) -> bool:
        first, _, attribute = name.partition(".")
        value = self._shell.user_ns.get(first)
        return value is not None and value is sys.modules.get(PACKAGE) if attribute else isinstance(value, Gpu)

    def _in_cell(self, error: SyntaxError) -> SyntaxError:
        """The error with the cell as its file; IPython recorded the cell's source immediately before."""
        numbers: dict[str, int] = getattr(self._shell.compile, "_filename_map", {})
        file = max(reversed(numbers), key=numbers.__getitem__, default="<cell>")
        line = error.lineno or 1
        return BlockRefused(error.msg, (file, line, error.offset, linecache.getline(file, line)))
