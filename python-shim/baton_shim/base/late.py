"""Runs actions around the first execution of a module: for a library that is not loaded yet, or a student's module.

State that arrived for a library that is not loaded must be set before its first use, and importing the library for that
would cost seconds.

A frame of this package below a running module would be visible: Python removes the import system's frames from a
traceback only if no other frames are between them, and `warnings.warn(..., stacklevel=2)` counts frames. So this module
acts at two moments. Before the code runs, it acts when a loader asks for the times of the source
(`SourceLoader.get_code` calls `path_stats`) or a finder looks for an extension. After it, it acts when the import
system records in the module's spec that it is no longer being initialized (`importlib._bootstrap._load_unlocked`).

**Invariant:** nothing of this module is on the stack while a module's code runs, and modules keep their own loaders.
The end of a module that a program executes without the import system (`importlib.util.LazyLoader`) cannot be seen.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, TypeGuard

Action = Callable[[], None]
Look = Callable[[SourceFileLoader, ModuleType], None]

COMPILE = "source_to_code"
"""The loader's method that compiles the source."""

_waiting: dict[str, list[Action]] = {}
_looks: list[Look] = []


def when_imported(module: str, action: Action) -> None:
    """Calls `action` after the module is next executed for the first time, unless that fails."""
    install()
    _waiting.setdefault(module, []).append(action)


def before_execution(look: Look) -> None:
    """Calls `look` before each execution of a module from a source file, reloads included."""
    install()
    _looks.append(look)


def compile_with(loader: SourceFileLoader, compile_source: Callable[..., CodeType]) -> None:
    """Called by a look: compiles this module's source with the function; no bytecode is read or written for it."""
    setattr(loader, COMPILE, compile_source)


def when_executed(spec: ModuleSpec | None, action: Action) -> None:
    """Calls `action` at the end of the current execution, unless that fails.

    If a module is executed again, its end is not reported, so `action` is called at once.
    """
    if is_initializing(spec):
        follow(spec, action)
    else:
        action()


def is_initializing(spec: ModuleSpec | None) -> TypeGuard[ModuleSpec]:
    return bool(getattr(spec, "_initializing", False))


@functools.cache
def install() -> None:
    """Installs the hooks at their first use."""
    times, find = SourceFileLoader.path_stats, FileFinder.find_spec

    def path_stats(self: SourceFileLoader, path: Any) -> Any:
        found = times(self, path)
        source_is_read(self)
        if COMPILE in vars(self):
            raise OSError("compiled in its own way")  # so that no bytecode is used or kept
        return found

    def find_spec(self: FileFinder, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = find(self, fullname, target)
        if spec is not None and fullname in _waiting and not isinstance(spec.loader, SourceFileLoader):
            follow(spec, functools.partial(arrived, fullname))
        return spec

    SourceFileLoader.path_stats = path_stats  # type: ignore[method-assign]
    FileFinder.find_spec = find_spec  # type: ignore[method-assign, assignment]


def source_is_read(loader: SourceFileLoader) -> None:
    """Called by `path_stats`; the frames above it are `get_code` and `exec_module` if the module is to be executed."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_name in ("path_stats", "get_code"):
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != "exec_module":
        return  # a program wants only the code
    module = frame.f_locals.get("module")
    if not isinstance(module, ModuleType):
        return
    for look in _looks:
        look(loader, module)
    if module.__name__ in _waiting and is_initializing(module.__spec__):
        follow(module.__spec__, functools.partial(arrived, module.__name__))


def arrived(module: str) -> None:
    for action in _waiting.pop(module, []):
        action()


def follow(spec: ModuleSpec, action: Action) -> None:
    """Calls the action when the import system marks the module as complete."""
    if not isinstance(spec, Followed):
        kind: type[ModuleSpec] = type(spec)
        spec.__class__ = type(kind.__name__, (Followed, kind), {})
    vars(spec).setdefault(ACTIONS, []).append(action)


ACTIONS = "_baton_actions"


class Followed(ModuleSpec):
    """The spec of a module whose import is under way."""

    @property
    def _initializing(self) -> bool:
        return bool(vars(self).get("_initializing"))

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        vars(self)["_initializing"] = value
        if not value:
            self.__class__ = type(self).__bases__[-1]
            actions: list[Action] = vars(self).pop(ACTIONS)
            if self.name in sys.modules:  # a failed import removes it
                for action in actions:
                    action()
