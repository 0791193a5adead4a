"""C libraries that a cell opens with ctypes, their functions, and Python functions that C may call.

A library is sent as its class and name, with which it is opened again. The other kernel opens the same file, or its own
library of that name. The variables of a library are separate in each kernel. A function is sent as its name in the
library, with what the notebook set about its arguments and result.

**Invariant:** no address is sent. An object that is only an address in this process stays, with that reason.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterable, Iterator
from typing import Any

from baton_shim.state.kinds.base import Here, Kind, State
from baton_shim.state.refusal import StandIn

_FUNCTION: Any = ctypes.CFUNCTYPE(None).__mro__[1]
_TYPE_OF_FUNCTIONS: Any = type(_FUNCTION)
_USES_ERRNO, _KEEPS_THE_LOCK = 0x8, 0x4  # flags of function classes (`ctypes.h`)
_OF_OPENING = frozenset(("_name", "_handle", "_FuncPtr"))


class _SymbolInfo(ctypes.Structure):
    """The result of `dladdr` for an address."""

    _fields_ = (
        ("file_name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


_dladdr = ctypes.CDLL(None).dladdr
_dladdr.argtypes = (ctypes.c_void_p, ctypes.POINTER(_SymbolInfo))


def is_library_type(kind: type) -> bool:
    return issubclass(kind, ctypes.CDLL)


class LibraryKind(Kind):
    """`ctypes.CDLL`, `PyDLL` and subclasses."""

    name = "C library"
    blind = True
    changes = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.open, self.apply, self.interpreter, self.functions_of)

    def reduce(self, obj: Any) -> Any:
        if obj is ctypes.pythonapi:
            return self._anchors[2], (), self.read(obj), None, None, self._anchors[1]
        uses_errno = bool(obj._FuncPtr._flags_ & _USES_ERRNO)
        arguments = type(obj), obj._name, whole_path(obj._name), uses_errno
        return self._anchors[0], arguments, self.read(obj), None, None, self._anchors[1]

    def open(self, kind: Any, name: str | None, path: str | None, uses_errno: bool) -> Any:
        opened = kind.__new__(kind)
        failure: OSError | None = None
        for place in dict.fromkeys((name, path)):
            if place is None and name is not None:
                continue
            try:
                ctypes.CDLL.__init__(opened, place, use_errno=uses_errno)
            except OSError as error:
                failure = failure or error
                continue
            opened._name = name
            return opened
        there, here = ("on the GPU machine", "in your notebook") if self.here.home else ("in your notebook", "there")
        return StandIn(
            f"the library {name!r} was opened {there}, but cannot be opened {here}: {failure}",
            "make its file available on both sides: beside the notebook, or installed under the same name",
        )

    def interpreter(self) -> Any:
        return ctypes.pythonapi

    def functions_of(self, library: Any) -> Any:
        """The class of the library's functions."""
        return library if type(library) is StandIn else library._FuncPtr

    def read(self, obj: Any) -> State:
        return tuple((name, value) for name, value in vars(obj).items() if name not in _OF_OPENING)

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        yield type(obj)
        yield from (value for _, value in state)

    def apply(self, obj: Any, content: Any) -> None:
        if type(obj) is StandIn:
            return
        attributes = vars(obj)
        for name in attributes.keys() - _OF_OPENING:
            del attributes[name]
        attributes.update(content)


def whole_path(name: str | None) -> str | None:
    """The absolute path of a relative one: the other kernel may not have applied a `%cd` yet."""
    if name is None or os.sep not in name or os.path.isabs(name):
        return None
    return os.path.abspath(name)


class CFunctionKind(Kind):
    """A function of a library, or a Python function as C sees it (`ctypes.CFUNCTYPE(c_int)(function)`)."""

    name = "C function"
    blind = True
    changes = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.of_library, self.of_python, self.apply)

    def reduce(self, obj: Any) -> Any:
        of_library, of_python, apply = self._anchors
        library, function = library_of(obj), called_by(obj)
        if library is not None:
            own = type(obj) is library._FuncPtr
            arguments: tuple[Any, ...] = library, symbol_of(obj, library), None if own else type(obj)
            return of_library, arguments, self.read(obj), None, None, apply
        if function is None and obj:
            raise TypeError("it is an address in this process, and ctypes does not know its library")
        return of_python, (type(obj), function), self.read(obj), None, None, apply

    def of_library(self, library: Any, symbol: str, kind: Any) -> Any:
        if type(library) is StandIn or type(kind) is StandIn:
            return library if type(library) is StandIn else kind
        try:
            return (library._FuncPtr if kind is None else kind)((symbol, library))
        except AttributeError as error:
            return StandIn(f"the function {symbol!r} of the library {library._name!r} is not in this kernel's: {error}")

    def of_python(self, kind: Any, function: Any) -> Any:
        if type(kind) is StandIn:
            return kind
        return kind() if function is None else kind(function)

    def read(self, obj: Any) -> State:
        return obj.argtypes, obj.restype, obj.errcheck, tuple(vars(obj).items())

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        arguments, result, check, attributes = state
        yield type(obj)
        yield library_of(obj)
        yield called_by(obj)
        yield from (arguments, result, check)
        yield from (value for _, value in attributes)

    def apply(self, obj: Any, content: Any) -> None:
        if type(obj) is StandIn:
            return
        arguments, result, check, attributes = content
        if obj.argtypes != arguments:
            obj.argtypes = arguments
        if obj.restype is not result:
            obj.restype = result
        if check is not None:
            obj.errcheck = check
        elif obj.errcheck is not None:
            del obj.errcheck
        vars(obj).clear()
        vars(obj).update(attributes)


def is_function_type(kind: type) -> bool:
    return issubclass(kind, _FUNCTION)


def library_of(function: Any) -> Any:
    """The library that a function keeps open; `None` if it belongs to no library."""
    kept = function._objects
    found = kept.get("0") if type(kept) is dict else None
    return found if isinstance(found, ctypes.CDLL) else None


def called_by(function: Any) -> Any:
    """The Python function behind one that C may call."""
    kept = function._objects
    thunk = kept.get("0") if type(kept) is dict else None
    if type(thunk).__name__ != "CThunkObject":
        return None
    # Since Python 3.12, its class; the argument converters, the function, and the result type.
    held = (one for one in gc.get_referents(thunk) if one is not type(thunk) and type(one) is not tuple)
    return next(held, None)


def symbol_of(function: Any, library: Any) -> str:
    """Its name in the library. A prototype does not keep it, and the attribute can be changed."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    info = _SymbolInfo()
    names = [vars(function).get("__name__")]
    if _dladdr(address, info) and info.name is not None:
        names.append(info.name.decode(errors="surrogateescape"))
    for name in names:
        if isinstance(name, str) and _address(library, name) == address:
            return name
    raise TypeError("it is an address in a library that has no name for it")


def _address(library: Any, name: str) -> int | None:
    try:
        return ctypes.cast(library._FuncPtr((name, library)), ctypes.c_void_p).value
    except (AttributeError, ValueError):
        return None


def class_of_functions(kind: Any, functions_of: Any) -> Any:
    """The reduced form of a function class that ctypes created: by its library, or by its argument and result types."""
    if type(kind) is not _TYPE_OF_FUNCTIONS or kind.__bases__ != (_FUNCTION,) or kind.__module__ != "ctypes":
        return None
    if "_argtypes_" not in vars(kind):
        library = next(_libraries_with(kind), None)
        return None if library is None else (functions_of, (library,))
    return prototype, (kind._flags_, kind._restype_, kind._argtypes_)


def prototype(flags: int, result: Any, arguments: Iterable[Any]) -> Any:
    """ctypes creates one class for each prototype."""
    make = ctypes.PYFUNCTYPE if flags & _KEEPS_THE_LOCK else ctypes.CFUNCTYPE
    return make(result, *arguments, **({"use_errno": True} if flags & _USES_ERRNO else {}))


def _libraries_with(kind: Any) -> Iterator[Any]:
    for holder in gc.get_referrers(kind):
        holders = gc.get_referrers(holder) if type(holder) is dict and holder.get("_FuncPtr") is kind else [holder]
        for one in holders:
            if issubclass(type(one), ctypes.CDLL) and one._FuncPtr is kind:
                yield one
