"""What the notebook registers by calls that leave no trace to look up: error handlers of `codecs`, reducers of
`copyreg`, dialects of `csv`, colour maps, the mode of new files.

These functions record calls by cells, and the other end repeats them. Of several calls about the same thing, the last
one counts. Calls by libraries are not sent, because each process has its own.

**Invariant:** without such a call nothing is sent; no library is imported for it.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from baton_shim.base import late

if TYPE_CHECKING:
    from baton_shim.base.undoing import OnUndo

# By module: functions, or methods of classes. With a `*`, each first argument is a separate thing.
NOTED = {
    "calendar": ("setfirstweekday",),
    "codecs": ("register*", "unregister*", "register_error*"),
    "copyreg": ("pickle*",),
    "csv": ("register_dialect*", "unregister_dialect*", "field_size_limit"),
    "gettext": ("textdomain", "bindtextdomain*"),
    "logging": ("addLevelName*", "captureWarnings", "setLogRecordFactory", "setLoggerClass"),
    "mimetypes": ("add_type*",),
    "os": ("umask",),
    "shutil": (
        *("register_archive_format*", "unregister_archive_format*"),
        *("register_unpack_format*", "unregister_unpack_format*"),
    ),
    "sqlite3": ("register_adapter*", "register_converter*"),
    "threading": ("stack_size",),
    "urllib.request": ("install_opener",),
    "xml.etree.ElementTree": ("register_namespace*",),
    "matplotlib.cm": ("ColormapRegistry.register*", "ColormapRegistry.unregister*"),
    "matplotlib.colors": ("ColorSequenceRegistry.register*", "ColorSequenceRegistry.unregister*"),
    "matplotlib.font_manager": ("FontManager.addfont*",),
    "matplotlib.projections": ("register_projection*",),
    "matplotlib.scale": ("register_scale*",),
    "torch": ("set_flush_denormal", "set_warn_always"),
    "torch.backends.cuda": (
        *("enable_flash_sdp", "enable_mem_efficient_sdp", "enable_math_sdp", "enable_cudnn_sdp"),
        *("preferred_linalg_library", "preferred_blas_library"),
    ),
    "tqdm.std": ("tqdm.pandas",),
}

RETURN_THE_PREVIOUS = ("umask", "stack_size", "field_size_limit")

_MARK = "_baton_noted"
Key = tuple[str, str, str]
"""A unique number of the call, the module, and the function."""
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Registered:
    """One end's recorded calls, in order."""

    def __init__(self) -> None:
        self.calls: dict[Key, Arguments] = {}
        self._count = itertools.count()

    def watch(self) -> None:
        """Called at the start of a kernel."""
        for module in NOTED:
            if module in sys.modules:
                self._watch(module)
            else:
                late.when_imported(module, functools.partial(self._watch, module))

    def _watch(self, module: str) -> None:
        for place in NOTED[module]:
            *kinds, name = place.rstrip("*").split(".")
            owner = found_in(module, kinds)
            function = getattr(owner, name, None)
            path = ".".join((*kinds, name))
            if isinstance(function, types.MethodType):  # a class method, whose calls are recorded with the class
                setattr(owner, name, classmethod(self._noted(function.__func__, module, path)))
            elif function is not None:  # this version of the library has it
                setattr(owner, name, self._noted(function, module, path))

    def _noted(self, function: Callable[..., Any], module: str, place: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def noted(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            if (arguments or named) and sys._getframe(1).f_globals.get("__name__") == "__main__":
                self._note((f"{os.getpid()}.{next(self._count)}", module, place), (arguments, named))
            return result

        noted.__module__ = module  # so that it can be found by its name
        vars(noted)[_MARK] = True
        return noted

    def _note(self, key: Key, arguments: Arguments) -> None:
        thing = thing_of(key, arguments)
        for known in [known for known, others in self.calls.items() if thing_of(known, others) == thing]:
            del self.calls[known]
        self.calls[key] = arguments

    def apply(self, calls: Iterable[tuple[Key, Arguments]], undo: OnUndo) -> None:
        before = dict(self.calls)
        undo(functools.partial(setattr, self, "calls", before))
        for key, arguments in calls:
            if key not in self.calls:
                self._note(key, arguments)
                if key[1] in sys.modules:
                    previous = make(key, arguments)
                    undo(functools.partial(unmake, key, arguments, before, previous))
                else:
                    late.when_imported(key[1], functools.partial(self._arrived, key))

    def _arrived(self, key: Key) -> None:
        if key in self.calls:
            make(key, self.calls[key])


def is_noted(function: Any) -> bool:
    """Whether calls of it are recorded here."""
    return getattr(function, _MARK, False) is True


def thing_of(key: Key, arguments: Arguments) -> tuple[Any, ...]:
    """Two calls with the same result are about the same thing."""
    _, module, place = key
    kind, _, name = place.rpartition(".")
    if f"{place}*" not in NOTED[module]:
        return module, place
    positional, named = arguments
    values = positional[1 if kind else 0 :] or tuple(named.values())  # without the registry itself
    texts = tuple(itertools.takewhile(lambda value: isinstance(value, str), values))
    return module, kind, name.removeprefix("un"), texts or id(values[0])


def make(key: Key, arguments: Arguments) -> Any:
    positional, named = arguments
    function = found_in(key[1], key[2].split("."))
    with suppress(Exception):  # what it unregisters may never have been registered here
        return getattr(function, "__wrapped__", function)(*positional, **named)


def unmake(key: Key, arguments: Arguments, before: Mapping[Key, Arguments], previous: Any) -> None:
    """Undoes a call by the earlier call about the same thing, by the opposite function, or by the previous value."""
    thing = thing_of(key, arguments)
    for known, others in before.items():
        if thing_of(known, others) == thing:
            make(known, others)
            return
    number, module, place = key
    kind, dot, name = place.rpartition(".")
    opposite = f"{kind}{dot}un{name}"
    if f"{opposite}*" in NOTED[module]:
        registry, first = arguments[0][: bool(kind)], (*arguments[0], *arguments[1].values())[bool(kind)]
        make((number, module, opposite), ((*registry, arguments[1].get("name", getattr(first, "name", first))), {}))
    elif place in RETURN_THE_PREVIOUS:
        make(key, ((previous,), {}))


def found_in(module: str, path: Iterable[str]) -> Any:
    found: Any = sys.modules[module]
    for part in path:
        found = getattr(found, part, None)
    return found


REGISTERED = Registered()
