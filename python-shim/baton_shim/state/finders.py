"""Import hooks of the notebook, and of its own `.py` files, are sent ahead of the modules that they find.

A module that such a hook has loaded is sent by name, and the other end can import it only with the hook. Later changes
of `sys.meta_path` are sent by `surroundings/hooks.py`.
"""

from __future__ import annotations

import sys
import types
from importlib.machinery import SourceFileLoader
from typing import Any

from baton_shim.base.local_modules import is_own
from baton_shim.base.originals import of_notebook
from baton_shim.state.refusal import StandIn


class Finders:
    """Unpickling it appends these finders to those that the reader has."""

    def __init__(self, finders: list[Any]) -> None:
        self.finders = finders

    def __reduce__(self) -> tuple[Any, ...]:
        return install, (self.finders,)


def install(finders: list[Any]) -> dict[str, Any]:
    """Returns no names to bind. A file that installs its hook has done so here, too, when it was imported just now."""
    installed = {type(one) for one in sys.meta_path if is_of_own_file(one)}
    sys.meta_path += [one for one in finders if type(one) is not StandIn and type(one) not in installed]
    return {}


def finders_of_notebook() -> list[Any]:
    return [finder for finder in sys.meta_path if is_of_student(finder)]


def is_loaded_by_notebook(value: Any) -> bool:
    """Whether it is a module that an import hook of the notebook has loaded, or a function or class of one."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    module = sys.modules.get(str(name))
    return is_of_student(getattr(module, "__loader__", None))


def is_of_student(one: Any) -> bool:
    return of_notebook(one) or is_of_own_file(one)


def is_of_own_file(one: Any) -> bool:
    """Whether its class is in a `.py` file of the student's."""
    name = (one if isinstance(one, type) else type(one)).__module__
    loader = getattr(getattr(sys.modules.get(name), "__spec__", None), "loader", None)
    return isinstance(loader, SourceFileLoader) and is_own(name, str(loader.path))
