"""Exceptions between two kernels, and Baton's own.

An exception of a cell is sent as data (the name of its class, arguments, attributes) and rebuilt in the notebook. So a
class whose `__init__` differs, or that the notebook does not have, cannot keep the cell's state from arriving.

**Invariant:** reading a description never raises.
"""

from __future__ import annotations

import builtins
import importlib
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from baton_shim.base import frames, here


class GpuServiceError(RuntimeError):
    """The cell did not run, or its results are lost; the notebook has the values from before the cell."""

    unit = "cell"
    """What did not run: a cell, a block or a call."""

    results: dict[int, Any]
    """Only for `gpu.map`: the results that have arrived, by the number of their item."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message

    def _render_traceback_(self) -> list[str]:
        lines = [f"{type(self).__name__}: {self.message}"]
        lines += [f"hint: {line}" for line in (self.hint or "").splitlines()]
        return lines if safe(self.unit) in self.message else [*lines, safe(self.unit)]


class StateRefused(GpuServiceError):
    """Something that the cell needs cannot be sent to the GPU machine."""


def service_error(name: str, base: type[GpuServiceError]) -> type[GpuServiceError]:
    """A class with this name. If a builtin exception has the name, an `except` for it catches this one, too."""
    found = getattr(builtins, name, None)
    if name == base.__name__ or not name.isidentifier():
        return base
    if isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, BaseExceptionGroup):
        try:
            return type(name, (base, found), {})
        except TypeError:  # the layouts of their instances differ
            pass
    return type(name, (base,), {})


def safe(unit: str) -> str:
    """The sentence that tells the student that nothing was lost. `unit`: cell, block or call."""
    return f"Your variables are as they were before the {unit}"


@dataclass
class Raised:
    """The last error that represents one of the session, and the traceback that the session's kernel wrote."""

    error: BaseException | None
    lines: list[str]
    trace: TracebackType | None
    """The frames of the session, as far as they are rebuilt here."""
    shown: bool = False


_last = Raised(None, [], None)


def with_lines(error: BaseException, lines: list[str]) -> BaseException:
    """Returns the error, prepared to be raised next with these lines."""
    global _last
    _last = Raised(error, lines, error.__traceback__)
    return error


def rendered(error: BaseException) -> list[str] | None:
    """The lines to show instead of what IPython would make of the frames here. None if the error was raised again here,
    because it then has other frames.
    """
    if isinstance(error, GpuServiceError):
        return error._render_traceback_()
    again = _last.shown and _last.trace is not None and error.__traceback__ is not _last.trace
    return None if error is not _last.error or again else list(_last.lines)


def trace_of(error: BaseException) -> TracebackType | None:
    """The traceback of the cell without Baton's own frames, which are removed from the error for good."""
    if error is not _last.error or _last.trace is None:
        return None
    _last.shown = True
    error.__traceback__ = _last.trace
    return _last.trace


def raise_here(error: BaseException) -> None:
    """Gives the error the traceback of its frames here and in the session, because the notebook may catch it."""
    global _last
    if error is not _last.error or _last.trace is None:
        return
    for line in _last.lines:
        if line.startswith("hint: "):
            error.add_note(line)
    error.__traceback__ = frames.block_trace(_last.trace)
    _last = Raised(None, [], None)


def linked(error: BaseException | None) -> Iterator[BaseException]:
    """The error, its cause or context, and so on."""
    seen: set[int] = set()
    chain = [error]
    while chain:
        link = chain.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            yield link
            chain += [link.__cause__, link.__context__]


def describe(error: BaseException) -> bytes:
    """The description for `rebuild`. Needs cloudpickle only for arguments of the student's own classes."""
    from baton_shim.state.kinds import traces

    kind = type(error)
    bases = [(base.__module__, base.__qualname__) for base in kind.__mro__]
    attributes = dict(vars(error))
    arguments = arguments_of(error)
    trace = traces.described(traces.places(error.__traceback__))
    for given, rest in ((arguments, attributes), (arguments, {}), ((short(error),), {})):
        try:
            return dumps((bases, trace, given, rest))
        except Exception:  # any error of a student's `__reduce__`
            continue
    return pickle.dumps((bases, trace, (), {}))


def arguments_of(error: BaseException) -> tuple[Any, ...]:
    """Builtin exceptions have more than `args`: an OSError's file name, for example."""
    try:
        form = error.__reduce__()
        if isinstance(form, tuple) and form[0] is type(error):
            return tuple(form[1])
    except Exception:  # in a class of the student's
        pass
    return error.args


def dumps(value: object) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception:
        import cloudpickle

        return bytes(cloudpickle.dumps(value))


def short(error: BaseException) -> str:
    """Its message, for use inside another one. Never raises, even if the class's `__str__` does."""
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__name__} object>"


def has_text(error: BaseException) -> bool:
    """Whether its class can say what happened: a kernel needs the text for its reply."""
    try:
        str(error)
    except Exception:
        return False
    return True


def rebuild(description: bytes, name: str, value: str, namespace: Mapping[str, Any]) -> BaseException:
    """The exception in its own class if this kernel has it; otherwise a stand-in with the same name and text."""
    from baton_shim.state.kinds import traces

    bases: list[tuple[str, str]] = []
    trace = None
    try:
        bases, places, *content = pickle.loads(description)
        trace = traces.rebuilt(places, namespace)
        found = find_class(bases[0], namespace)
        if found is not None and issubclass(found, may_be_raised()):
            arguments, attributes = content
            error = make(found, arguments)
            vars(error).update(attributes)
            if str(error) == value:
                return error.with_traceback(trace)
    except Exception:  # a missing package, a failing `__init__` or `__str__`: use the stand-in
        pass
    return stand_in(name, value, nearest(bases, namespace)).with_traceback(trace)


def may_be_raised() -> tuple[type[BaseException], ...]:
    """Classes that may be raised here: an exit must not end a kernel, but it may end a plain program."""
    kinds = (Exception, KeyboardInterrupt)
    return kinds if here.PROGRAM.shell is None else (*kinds, SystemExit)


def make(kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    pickled_by_itself = kind.__reduce__ is not BaseException.__reduce__
    if pickled_by_itself or isinstance(kind.__init__, type(BaseException.__init__)):
        return kind(*arguments)
    return kind.__new__(kind, *arguments)  # sets `args`; the class's own `__init__` may take other arguments


def nearest(bases: list[tuple[str, str]], namespace: Mapping[str, Any]) -> type[BaseException]:
    """The first base class that an `except` of the student may name, and that is harmless in a cell."""
    for base in bases:
        try:
            found = find_class(base, namespace)
        except Exception:
            continue
        if found is not None and issubclass(found, Exception) and not issubclass(found, BaseExceptionGroup):
            return found
    return Exception


def stand_in(name: str, value: str, base: type[BaseException]) -> BaseException:
    body = {"__init__": lambda self, *arguments: None, "__str__": lambda self: value}
    for found in (base, Exception):
        try:
            kind: type[BaseException] = type(name, (found,), body)
            error: BaseException = kind.__new__(kind)
            error.args = (value,)
            return error
        except Exception:  # a base that takes other arguments
            continue
    return Exception(value)


def find_class(place: tuple[str, str], namespace: Mapping[str, Any]) -> type[BaseException] | None:
    module, qualified_name = place
    first, *others = qualified_name.split(".")
    if module == "__main__":
        found = namespace.get(first)
    else:
        owner = builtins if module == "builtins" else importlib.import_module(module)
        found = getattr(owner, first, None)
    for part in others:
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
