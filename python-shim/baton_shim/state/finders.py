"""Import hooks of the notebook are sent ahead of the modules that they find.

A module that such a hook has loaded is sent by name, and the other end can import it only with the hook. Later changes
of `sys.meta_path` are sent by `surroundings/hooks.py`.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from baton_shim.base.originals import of_notebook


class Finders:
    """Unpickling it appends these finders to those that the reader has."""

    def __init__(self, finders: list[Any]) -> None:
        self.finders = finders

    def __reduce__(self) -> tuple[Any, ...]:
        return install, (self.finders,)


def install(finders: list[Any]) -> dict[str, Any]:
    """Returns no names to bind."""
    sys.meta_path += finders
    return {}


def finders_of_notebook() -> list[Any]:
    return [finder for finder in sys.meta_path if of_notebook(finder)]


def is_loaded_by_notebook(value: Any) -> bool:
    """Whether it is a module that an import hook of the notebook has loaded, or a function or class of one."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    module = sys.modules.get(str(name))
    return of_notebook(getattr(module, "__loader__", None))
