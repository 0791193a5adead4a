"""Submodules that a cell imported: after `import PIL.Image`, all cells can use `PIL.Image`.

The package itself is sent with the names that refer to it. The submodules are found in the source of the notebook's
cells.

**Invariant:** a submodule is imported only after something has imported its package.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from baton_shim.base import late
from baton_shim.surroundings.kind import Kind

IMPORT = re.compile(
    r"^[ \t]*(?:import[ \t]+([^\n#;]+)|from[ \t]+([\w.]+)[ \t]+import\b[ \t]*\(?([^\n#;)]*))", re.MULTILINE
)
PART = re.compile(r"\w+(?:\.\w+)+")


def imported_by(text: str) -> set[str]:
    """The packages and modules, without their parts, that this code imports."""
    found = (match[1] or match[2] for match in IMPORT.finditer(text))
    return {name.split()[0].partition(".")[0] for names in found for name in names.split(",") if name.strip()}


def names_bound(text: str) -> Iterator[tuple[str, str, str]]:
    """The names that imports in this code bind, each with its module and, after `from`, the name in the module."""
    for match in IMPORT.finditer(text):
        for part in filter(None, map(str.strip, (match[1] or match[3]).split(","))):
            path, _, alias = part.partition(" as ")
            if match[2]:
                yield alias.strip() or path, match[2], path
            else:
                name = path if alias else path.partition(".")[0]
                yield alias.strip() or name, name, ""


class Imports:
    def __init__(self) -> None:
        self._named: set[str] = set()
        self._found: frozenset[str] = frozenset()
        self._seen = (0, 0)

    def read(self, text: str) -> None:
        """Records what this code imports."""
        for match in IMPORT.finditer(text):
            self._named.update(PART.findall(match[1] or match[2]))

    def look(self, _: Any) -> frozenset[str]:
        seen = len(self._named), len(sys.modules)
        if seen != self._seen:
            self._seen = seen
            self._found |= {name for name in self._named if name in sys.modules}
        return self._found

    def apply(self, _: Any, names: Iterable[str]) -> None:
        self._found |= set(names)
        for name in names:
            package = name.partition(".")[0]
            if package in sys.modules:
                import_part(name)
            else:
                late.when_imported(package, partial(import_part, name))


def import_part(name: str) -> None:
    with suppress(Exception):  # it is not installed here; code that uses it gets the error
        importlib.import_module(name)


IMPORTS = Imports()
IMPORTED = Kind(
    *("imports", "A part of a package", "sys", IMPORTS.look, IMPORTS.apply),
    difference=lambda before, now: sorted(now - before),
    whole=False,
)
