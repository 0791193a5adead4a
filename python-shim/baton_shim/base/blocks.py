"""Blocks under `with gpu:` and functions under `@gpu`: the object `gpu`, and what transformed code calls.

`with_gpu.py` replaces a `with gpu:` statement by two versions of its block. One runs in place: on the GPU machine, or
if `gpu` is some other object. The other is a call of `module_block` or `function_block`, which runs the block remotely
and returns how it ended.

**Invariant:** imports only the standard library, because student code imports it through the package `baton`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import marshal
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from baton_shim.base.job import Job

DONE, BREAK, CONTINUE, RETURN, RAISE = range(5)
"""How a block ended."""
EXIT = "__baton_exit__"
"""The variable in which a block of a cell records that it ended with `break` or `continue`."""
BLOCK = "__baton_block__"
"""The name of the function that replaces a block inside a function."""
_LOCALS = f".<locals>.{BLOCK}"

NOT_TRANSFORMED = (
    "This 'with gpu:' was compiled without Baton, so its block cannot move to a GPU\n"
    "hint: import gpu with 'from baton import gpu' above it, in a cell or in the module itself; "
    "exec(), %run and __main__ do not work"
)
NO_BATON = (
    "This kernel was started without Baton, so there is no GPU to send code to\n"
    "hint: select the kernel 'Python (shared GPU)' (Kernel > Change Kernel…)"
)


class Work(NamedTuple):
    """What runs remotely: the code of a cell's block, or a function with its arguments."""

    text: str
    """The source, for the analysis of names."""
    code: tuple[bytes, str] | None = None
    """The marshalled code, and the file that it belongs to."""
    function: Callable[..., Any] | None = None
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = MappingProxyType({})
    unit: str = "block"

    def places(self) -> Iterator[tuple[str, object]]:
        """The variables of the enclosing function and the arguments, each with a description for messages."""
        if self.function is None:
            return
        for name, cell in zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # the variable is not bound
                yield name, cell.cell_contents
        parameters = self.function.__code__.co_varnames
        yield from zip(parameters, self.arguments, strict=False)
        yield from self.keywords.items()


class Kernel(Protocol):
    """The kernel that this program runs in."""

    remote: bool
    """Whether blocks run elsewhere."""

    @property
    def not_transformed(self) -> str:
        """The message for a block that was not taken out of its code."""

    def options(self, given: dict[str, Any]) -> Any:
        """The options of `%%gpu`. Raises ValueError for one that it does not have."""

    def run(self, work: Work, options: Any) -> tuple[int, Any]:
        """How it ended, and the value of its `return`. Raises the error that the code raised."""

    def run_in_background(self, work: Work, options: Any) -> Job:
        """The handle of a call that runs in the background."""

    def map(
        self, function: Callable[..., Any], items: list[tuple[Any, ...]], chunk: int, most: int | None, options: Any
    ) -> list[Any]:
        """The results of calls that run in several sessions at once. Raises the first error of a call."""


class OnGpuMachine:
    """The kernel of a program on the GPU machine: `with gpu:` and `@gpu` change nothing."""

    remote = False
    not_transformed = NOT_TRANSFORMED

    def options(self, given: dict[str, Any]) -> None:
        pass

    def run(self, work: Work, options: Any) -> tuple[int, Any]:
        raise NotImplementedError  # nothing runs remotely

    def run_in_background(self, work: Work, options: Any) -> Job:
        raise NotImplementedError

    def map(
        self, function: Callable[..., Any], items: list[tuple[Any, ...]], chunk: int, most: int | None, options: Any
    ) -> list[Any]:
        return [function(*arguments) for arguments in items]


class Runtime:
    """Which kernel of Baton's this program is, if any."""

    kernel: Kernel | None = None
    imported: Callable[[], None] | None = None
    """Called when a program imports `baton`. None: Baton did not start this kernel."""


RUNTIME = Runtime()


class Gpu:
    """Runs code on a GPU, with the notebook's variables: a block under `with gpu:`, or each call of a function
    under `@gpu`.

    Options are those of `%%gpu`, as arguments: `with gpu(timeout="5m", mem="8G"):` or `@gpu(priority="low")`.
    On the GPU machine itself, `with gpu:` and `@gpu` change nothing.

    Raises RuntimeError if Baton does not run, ValueError for an option that `%%gpu` does not have.
    """

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        self.options = options or {}

    def __call__(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """With a function: returns it wrapped, so that its calls run on a GPU. With options: a `gpu` that has them."""
        if options:
            configured = Gpu({**self.options, **options})
            if RUNTIME.kernel is not None:
                RUNTIME.kernel.options(configured.options)
            return configured if function is None else configured(function)
        return self if function is None else decorated(function, self)

    def map(
        self,
        function: Callable[..., Any],
        /,
        *iterables: Iterable[Any],
        chunksize: int = 1,
        max_workers: int | None = None,
        **options: Any,
    ) -> list[Any]:
        """Calls the function for each item, in several sessions at once, and returns the results in order.

        With several iterables the function gets one item of each, as with the builtin `map`. Each job runs `chunksize`
        items. At most `max_workers` jobs run at once; the broker decides how many do. Options are those of `%%gpu`, for
        each job.

        Each call has a copy of its arguments, and of the variables that the function uses, as they were when `map` was
        called. Only results are returned. On the GPU machine itself, the calls run in place, one after another.

        Raises the first error of a call, with a note that names the item; the other calls are cancelled. Raises
        TypeError and ValueError for arguments of a wrong type or value, RuntimeError where Baton does not run.
        """
        if not callable(function):
            raise TypeError(f"gpu.map needs a function, not a {type(function).__name__}")
        if inspect.iscoroutinefunction(function):
            raise TypeError(
                "gpu.map cannot call a coroutine function\nhint: call it with asyncio.run() in an ordinary function"
            )
        if not iterables:
            raise TypeError("gpu.map needs the items: gpu.map(function, items)")
        for name, number in (("chunksize", chunksize), ("max_workers", max_workers)):
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, not {number}")
        if RUNTIME.kernel is None:
            raise RuntimeError(NO_BATON)
        items = list(zip(*iterables, strict=False))
        return RUNTIME.kernel.map(function, items, chunksize, max_workers, {**self.options, **options})

    def __enter__(self) -> Gpu:
        if RUNTIME.kernel is None:
            raise RuntimeError(NO_BATON)
        if RUNTIME.kernel.remote:
            raise RuntimeError(RUNTIME.kernel.not_transformed)
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"gpu({options})" if options else "gpu"

    def __reduce__(self) -> Any:
        return (Gpu, (self.options,)) if self is not gpu else "gpu"


Gpu.__module__ = "baton"
gpu = Gpu()


def decorated(function: Any, manager: Gpu) -> Any:
    """The function, wrapped so that its calls run on a GPU. Raises TypeError for anything but a function."""
    if not isinstance(function, types.FunctionType):
        hint = "put @gpu below the other decorators" if callable(function) else "write @gpu above a function"
        raise TypeError(f"@gpu decorates functions, not a {type(function).__name__}\nhint: {hint}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError("@gpu cannot decorate a generator, whose code runs after the call\nhint: return a list instead")
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_on_gpu(*arguments: Any, **keywords: Any) -> Any:
            if is_here():
                return await function(*arguments, **keywords)
            return call(function, arguments, keywords, manager)

    else:

        @functools.wraps(function)
        def run_on_gpu(*arguments: Any, **keywords: Any) -> Any:
            if is_here():
                return function(*arguments, **keywords)
            return call(function, arguments, keywords, manager)

        def background(*arguments: Any, **keywords: Any) -> Job:
            """Makes the call when the current cell has ended, while the notebook goes on."""
            if is_here():
                return ended_job(function, arguments, keywords)
            assert RUNTIME.kernel is not None
            return RUNTIME.kernel.run_in_background(work_of(function, arguments, keywords), manager.options)

        run_on_gpu.background = background  # type: ignore[attr-defined]

    return run_on_gpu


def ended_job(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Job:
    """The handle of a call on the GPU machine itself, which runs at once."""
    job = Job(0, "call")
    try:
        job.ends(function(*arguments, **keywords), None)
    except Exception as error:
        job.ends(None, error)
    return job


def is_here() -> bool:
    """Whether this is the GPU machine. Raises RuntimeError without Baton."""
    if RUNTIME.kernel is None:
        raise RuntimeError(NO_BATON)
    return not RUNTIME.kernel.remote


def call(function: types.FunctionType, arguments: tuple[Any, ...], keywords: dict[str, Any], manager: Gpu) -> Any:
    assert RUNTIME.kernel is not None
    return RUNTIME.kernel.run(work_of(function, arguments, keywords), manager.options)[1]


def work_of(function: types.FunctionType, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Work:
    return Work(text_of_call(function), None, function, arguments, keywords, "call")


def text_of_call(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", "")
    return f"{name if name.isidentifier() else 'function'}(...)"


# ---- what transformed code calls

_last = threading.local()


def runs_here(manager: Any) -> bool:
    """Whether the block runs in place. True also without Baton: entering the manager then raises the error."""
    _last.value = manager
    return not isinstance(manager, Gpu) or RUNTIME.kernel is None or not RUNTIME.kernel.remote


def take() -> Any:
    """Returns what the last answer on this thread left: the manager, the value of `return`, or the error."""
    taken, _last.value = _last.value, None
    return taken


def module_block(code: bytes, text: str) -> int:
    return run(take(), Work(text, (code, sys._getframe(1).f_code.co_filename)))


def function_block(text: str) -> Callable[[Any], None]:
    manager = take()

    def run_block(block: types.FunctionType) -> None:
        block.__code__ = renamed(block.__code__)
        _last.ended = run(manager, Work(text, None, block))

    return run_block


def ended() -> int:
    """How the last `function_block` on this thread ended."""
    return int(_last.ended)


def run(manager: Gpu, work: Work) -> int:
    """Returns how the block ended.

    The caller raises the error, so that no frames of this package stand between the caller's and the block's.
    """
    assert RUNTIME.kernel is not None
    try:
        ended, _last.value = RUNTIME.kernel.run(work, manager.options)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("baton_shim."):
            trace = trace.tb_next
        _last.value = error.with_traceback(trace)
        return RAISE
    return ended


@functools.lru_cache(maxsize=64)
def in_file(code: bytes, file: str) -> types.CodeType:
    """The marshalled code, as if it had been compiled in this file."""
    return replaced(marshal.loads(code), lambda one: {"co_filename": file})


def renamed(code: types.CodeType) -> types.CodeType:
    """The code under the name of the enclosing function, which tracebacks and names of nested functions show."""
    return renamed_in_place(code, (code.co_filename, code.co_qualname))


@functools.lru_cache(maxsize=64)
def renamed_in_place(code: types.CodeType, place: tuple[str, str]) -> types.CodeType:
    """`place` distinguishes codes of several cells or functions, which are equal if nothing else differs."""

    def names(one: types.CodeType) -> dict[str, Any]:
        around = outer(one.co_qualname)
        own = {"co_name": around.rpartition(".")[2]} if one is code else {}
        return {"co_qualname": around, **own}

    return replaced(code, names, outer)


def outer(text: str) -> str:
    return text.replace(_LOCALS, "", 1)


def replaced(
    code: types.CodeType,
    parts: Callable[[types.CodeType], dict[str, Any]],
    text: Callable[[str], str] = str,
) -> types.CodeType:
    """Replaces parts of the code and of the codes nested in it.

    `text` maps constants, because the qualified name of a class is a constant of its code.
    """

    def constants() -> Iterator[Any]:
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield replaced(constant, parts, text)
            else:
                yield text(constant) if type(constant) is str else constant

    return code.replace(co_consts=tuple(constants()), **parts(code))
