"""Source text of cells, for tracebacks and `inspect` in another kernel.

**Invariant:** imports only the standard library.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from typing import Any


def sources(shell: Any, files: Iterable[str]) -> dict[str, tuple[int, str]]:
    """The files among these that are cells of this kernel, each with its cell's number and text."""
    numbers: dict[str, int] = getattr(shell.compile, "_filename_map", {})
    return {file: (numbers[file], "".join(linecache.getlines(file))) for file in files if file in numbers}


def remember(file: str, text: str) -> None:
    """Stores a cell of an earlier kernel; cells of this kernel are not overwritten."""
    linecache.cache.setdefault(file, (len(text), None, text.splitlines(keepends=True), file))
