"""`with gpu:` in the student's own modules: the blocks are taken out when the import system compiles the source.

**Invariant:** bytecode of such a module is neither read nor written, because other programs would use it.
"""

from __future__ import annotations

import ast
import re
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

from baton_shim.base import late

MENTIONS = re.compile(rb"\bbaton\b")


def look(loader: SourceFileLoader, source: bytes) -> None:
    """Called before the module is executed."""
    if MENTIONS.search(source) is not None:
        late.compile_with(loader, compiled)


def compiled(source: Any, path: Any, *, _optimization: int = -1) -> CodeType:
    """Like `SourceLoader.source_to_code`."""
    from baton_shim.base.with_gpu import transformed

    tree: Any = compile(source, path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True, optimize=_optimization)
    try:
        tree = transformed(tree, lambda name: False, cell=False)
    except SyntaxError as error:
        lines = bytes(source).decode(errors="replace").splitlines()
        text = lines[error.lineno - 1] if error.lineno is not None and error.lineno <= len(lines) else ""
        raise SyntaxError(error.msg, (str(path), error.lineno, error.offset, text)) from None
    return compile(tree, path, "exec", dont_inherit=True, optimize=_optimization)
