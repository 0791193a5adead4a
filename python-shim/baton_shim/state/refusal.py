"""What cannot be sent, and how that is reported.

Three things may happen to an object that is bound to its process (a generator, an open file, a thread). If the cell
uses it by name, the cell is refused (`Refused`). If the session created it, it stays there under its name
(`Snapshot.left`). If another object that is sent refers to it, the other end gets a `StandIn` instead, which explains
itself when it is used, and becomes the original again when it is sent back.

A lock is sent, because loggers, queues and progress bars everywhere refer to locks, but not while another thread holds
it: that thread does not exist in the other process, where nothing would release the lock.
"""

from __future__ import annotations

import io
import re
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from baton_shim.base.closure import Uses
from baton_shim.base.examine import name_of_type
from baton_shim.base.locks import LOCKS, held_by_another_thread
from baton_shim.base.originals import METHODS

FILES = (io.FileIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
STANDARD_STREAMS = ("stdin", "stdout", "stderr")


class Refused(Exception):
    """A name that the cell uses cannot leave this process. Nothing was sent and nothing changed."""

    def __init__(self, path: str, reason: str, hint: str | None = None) -> None:
        super().__init__(path, reason, hint)
        self.path, self.reason, self.hint = path, reason, hint

    def __str__(self) -> str:
        return f"'{self.path}' {self.reason} and cannot move to the GPU machine"


def refuse(
    roots: Mapping[str, Any], why_not: Callable[[Any], tuple[str, str | None] | None], knows: Callable[[Any], bool]
) -> None:
    """Raises `Refused` for the first of these names that cannot be sent. `knows`: what the other end knows."""
    for name, obj in roots.items():
        reason = why_not(obj)
        if reason is not None:
            raise Refused(name, *reason)
        if type(obj) is StandIn and not knows(obj):
            raise Refused(name, f"is not here: {stand_in_text(obj)}", "run the cell that made it again")


def first_name(path: str) -> str:
    """The variable with which the path to an object begins."""
    match = re.match(r"[^\W\d]\w*", path)
    return match.group() if match else path


class TableBroken(Exception):
    """The two ends number differently (a lost message, another Python). The table cannot be used any more."""


class StandInError(RuntimeError):
    """An object that stayed in the other kernel was used here."""

    ends_at_the_call = True  # its traceback hides the frames of the library that was called (`frames.py`)

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.hint = hint or "the cell can use the object that contains it, but not this part; create it inside the cell"

    def __str__(self) -> str:
        return str(self.args[0])


def is_spent(obj: object) -> bool:
    """Whether losing this object, which stays in its process, costs nothing: it has ended, or can be imported again."""
    try:
        ask = next((ask for base, ask in _SPENT.items() if issubclass(type(obj), base)), None)
        return ask is not None and bool(ask(obj))
    except Exception:  # in the student's own class, or its metaclass
        return False


_SPENT: dict[type, Callable[[Any], object]] = {
    types.GeneratorType: lambda generator: generator.gi_frame is None,
    types.CoroutineType: lambda coroutine: coroutine.cr_frame is None,
    types.AsyncGeneratorType: lambda generator: generator.ag_frame is None,
    io.IOBase: lambda file: file.closed,
    threading.Thread: lambda thread: not thread.is_alive(),
    **dict.fromkeys((types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType), lambda _: True),
}


def where_it_is(home: bool) -> str:
    """Where an object stayed, as the other end says it: in the notebook kernel (`home`) or the session."""
    return "stayed in your notebook" if home else "lives on the GPU machine"


def stand_in_text(obj: object) -> str | None:
    """The text of a stand-in; `None` for anything else."""
    if type(obj) is not StandIn:
        return None
    text: str = object.__getattribute__(obj, "_baton_text")
    return text


class StandIn:
    """Replaces an object that stayed in the other kernel; every use of it raises `StandInError`.

    It refers to everything known to both kernels that the object holds, and records the notebook's names that the
    object may use. `spent`: whether losing the object costs nothing.
    """

    # Sets and dictionaries that hold the object must still be rebuilt: one entry differs from another by identity.
    __hash__ = object.__hash__
    __slots__ = ("__weakref__", "_baton_held", "_baton_hint", "_baton_spent", "_baton_text", "_baton_uses")

    def __init__(self, text: str, hint: str | None = None, spent: bool = False) -> None:
        object.__setattr__(self, "_baton_text", text)
        object.__setattr__(self, "_baton_hint", hint)
        object.__setattr__(self, "_baton_spent", spent)
        hold(self, (), ())

    def __repr__(self) -> str:
        return f"<{object.__getattribute__(self, '_baton_text')}>"

    def __format__(self, form: str) -> str:
        return _raise(self) if form else repr(self)

    def __reduce__(self) -> Any:
        return StandIn, (*_said(self), is_of_spent(self))

    def __getattribute__(self, name: str) -> Any:
        if name in ("__class__", "__reduce__", "__reduce_ex__", "__torch_function__"):
            return object.__getattribute__(self, name)
        return _raise(self)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any, kwargs: Any = None) -> NoReturn:
        """For calls of torch, which would otherwise reject the type; it may be one of several objects in a list."""
        given = [*args, *(kwargs or {}).values()]
        parts = [part for one in given for part in (one if type(one) in (list, tuple) else (one,))]
        _raise(next(part for part in parts if type(part) is cls))


def is_of_spent(stand_in: StandIn) -> bool:
    spent: bool = object.__getattribute__(stand_in, "_baton_spent")
    return spent


def end(stand_in: StandIn, session: str) -> str:
    """Marks the stand-in as one of a `session` that has ended. Returns what it represented, in a few words."""
    text, _ = _said(stand_in)
    what = text.removesuffix(f" and {where_it_is(home=False)}")
    object.__setattr__(stand_in, "_baton_text", f"{what} and ended with {session}")
    object.__setattr__(stand_in, "_baton_hint", "run the cell that made it again")
    name, is_a, kind = what.partition("' is ")
    return f"{name}' ({kind.removesuffix(',')})" if is_a else what.partition(" cannot be ")[0]


def hold(stand_in: StandIn, uses: Iterable[str], held: Iterable[Any]) -> None:
    object.__setattr__(stand_in, "_baton_uses", Uses(uses))
    object.__setattr__(stand_in, "_baton_held", tuple(held))


def held_by(stand_in: StandIn) -> tuple[Any, ...]:
    held: tuple[Any, ...] = object.__getattribute__(stand_in, "_baton_held")
    return held


def _said(stand_in: StandIn) -> tuple[str, str | None]:
    return object.__getattribute__(stand_in, "_baton_text"), object.__getattribute__(stand_in, "_baton_hint")


def _raise(stand_in: StandIn, *_: Any, **__: Any) -> NoReturn:
    raise StandInError(*_said(stand_in))


for _name in (
    "__call__ __iter__ __next__ __len__ __bool__ __contains__ __getitem__ __setitem__ __delitem__ __enter__ __exit__ "
    "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ "
    "__rmod__ __pow__ __rpow__ __matmul__ __rmatmul__ __and__ __rand__ __or__ __ror__ __xor__ __rxor__ __lshift__ "
    "__rshift__ __neg__ __pos__ __abs__ __invert__ __round__ __reversed__ __int__ __float__ __complex__ __index__ "
    "__divmod__ __rdivmod__ __trunc__ __floor__ __ceil__ __fspath__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ "
    "__get__ __setattr__ __delattr__ __await__ __aiter__ __anext__ __aenter__ __aexit__"
).split():
    setattr(StandIn, _name, _raise)


_BY_TYPE: dict[type, tuple[str, str]] = {
    types.GeneratorType: ("is a generator", "create it inside the cell, or turn it into a list first"),
    types.CoroutineType: ("is a coroutine", "create and await it inside the cell"),
    types.AsyncGeneratorType: ("is an asynchronous generator", "create it inside the cell"),
    types.FrameType: ("is a frame of a running program", "keep the values that you need from it"),
    types.TracebackType: ("is a traceback", "keep its text: traceback.format_exc()"),
    **dict.fromkeys(
        LOCKS, ("is a lock that another thread may hold", "release it first, or create it inside the cell")
    ),
    memoryview: ("is a view of memory that can change", "use the object behind it"),
}

_BY_NAME: dict[str, tuple[str, str]] = {
    "_asyncio.Task": ("is a task of this kernel's event loop", "create it inside the cell"),
    "_asyncio.Future": ("is a future of this kernel's event loop", "create it inside the cell"),
    "_contextvars.Context": ("is a context", "create it inside the cell"),
    "_contextvars.ContextVar": ("is a context variable", "create it inside the cell"),
    "_contextvars.Token": ("is a token of a context variable", "create it inside the cell"),
    "_thread._local": ("is data of this kernel's threads", "create it inside the cell"),
    "_csv.reader": ("is a reader of lines", "create it inside the cell, or turn it into a list first"),
    "_sre.SRE_Scanner": ("is a running search", "create it inside the cell, or turn it into a list first"),
    "select.epoll": ("is an epoll object", "create it inside the cell"),
    "_tkinter.tkapp": ("is a window", "create it inside the cell"),
    "subprocess.Popen": ("is a process of this machine", "start it inside the cell"),
    "torch.jit.torch.jit.ScriptFunction": (
        "is a function that torch.jit compiled",
        "compile it inside the cell",
    ),
    "torch.utils.data.dataloader._SingleProcessDataLoaderIter": (
        "is a running DataLoader iterator",
        "make it inside the cell: iter(loader)",
    ),
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter": (
        "is a running DataLoader iterator",
        "make it inside the cell: iter(loader)",
    ),
}

_OF_TF_DATA = "tensorflow.python.data.ops."
_BY_BASE: tuple[tuple[str, str, str, str], ...] = (
    ("socket", "socket", "is a network connection", "open it inside the cell"),
    ("sqlite3", "Connection", "is a database connection", "open it inside the cell"),
    ("sqlite3", "Cursor", "is a database cursor", "open it inside the cell"),
    ("sqlalchemy.engine", "Engine", "is a database engine", "create it inside the cell: create_engine(url)"),
    ("unittest.mock", "NonCallableMock", "is a mock", "create it inside the cell"),
    ("threading", "Thread", "is a thread", "start it inside the cell"),
    ("concurrent.futures", "Executor", "is a pool of workers", "create it inside the cell"),
    ("concurrent.futures", "Future", "is the result of a pool of workers", "use its value: future.result()"),
    ("multiprocessing.process", "BaseProcess", "is a process of this machine", "start it inside the cell"),
    ("multiprocessing.pool", "Pool", "is a pool of workers", "create it inside the cell"),
    ("weakref", "finalize", "is a finaliser of an object of this kernel", "create it inside the cell"),
    (_OF_TF_DATA + "dataset_ops", "DatasetV2", "is a dataset of tf.data", "make it inside the %%gpu cell"),
    (
        _OF_TF_DATA + "iterator_ops",
        "IteratorBase",
        "is an iterator over a dataset of tf.data",
        "make it inside the %%gpu cell",
    ),
    ("asyncio", "AbstractEventLoop", "is this kernel's event loop", "create it inside the cell"),
)


def bound_to_process(obj: object) -> tuple[str, str] | None:
    """The reason that this very object cannot leave its process, and what to do; `None` if none is known."""
    kind = type(obj)
    found = _BY_TYPE.get(kind) or _BY_NAME.get(f"{kind.__module__}.{kind.__qualname__}")
    if found:
        return found
    if isinstance(obj, (io.BytesIO, io.StringIO)):
        return None
    if isinstance(obj, io.IOBase):
        return _open_file(obj)
    if kind.__module__ in ("tempfile", "_io") and hasattr(obj, "fileno"):
        return _open_file(obj)
    is_class = issubclass(kind, type)
    if is_mapped(obj if is_class else kind):
        what = "is a class" if is_class else f"is a {name_of_type(kind)!r} object, whose class is one"
        return f"{what} that SQLAlchemy maps to a table", "define the class inside the cell that uses it"
    for module, name, reason, hint in _BY_BASE:
        base = getattr(sys.modules.get(module), name, None)
        if isinstance(base, type) and isinstance(obj, base):
            return reason, hint
    return None


_OF_PAGES = (("ipywidgets.widgets.widget", "Widget"), ("comm.base_comm", "BaseComm"))


def bound_to_page(obj: object) -> tuple[str, str] | None:
    """Like `bound_to_process`, for what a page shows and controls: a later kernel has no connection to that page."""
    for module, name in _OF_PAGES:
        base = getattr(sys.modules.get(module), name, None)
        if isinstance(base, type) and isinstance(obj, base):
            return "is a widget, and widgets are not saved", "create it again in the new kernel"
    return None


def is_mapped(kind: Any) -> bool:
    """Whether SQLAlchemy maps this class of the notebook to a table, or classes derived from it."""
    with suppress(Exception):  # its metaclass failed
        return "sqlalchemy.orm" in sys.modules and kind.__module__ == "__main__" and hasattr(kind, "_sa_registry")
    return False


def _open_file(obj: Any) -> tuple[str, str] | None:
    if standard_stream(obj):
        return None
    name = getattr(obj, "name", None)
    shown = f" ({name!r})" if isinstance(name, str) else ""
    return f"is {'a closed' if obj.closed else 'an open'} file{shown}", "open it inside the cell"


def standard_stream(obj: object) -> str | None:
    """`stdout` for the kernel's own standard output, and so on: each kernel has one, so it is sent by name."""
    return next((name for name in STANDARD_STREAMS if getattr(sys, name, None) is obj), None)


def is_closed_file(obj: Any) -> bool:
    """Whether it is a closed file of the file system, of one of Python's own classes."""
    try:
        return type(obj) in FILES and obj.closed and type(raw_of(obj)) is io.FileIO
    except ValueError:  # it is detached
        return False


def raw_of(file: Any) -> Any:
    buffer = file.buffer if type(file) is io.TextIOWrapper else file
    return buffer.raw if hasattr(buffer, "raw") else buffer


def finished_future(obj: Any) -> bool:
    """Whether it is the future of a pool of workers, and has its result."""
    future = getattr(sys.modules.get("concurrent.futures"), "Future", ())
    return isinstance(obj, future) and bool(obj.done())


def owner_of(view: memoryview) -> Any:
    """The object whose memory a view shows; None if the view has been released."""
    try:
        return view.obj
    except ValueError:
        return None


def shows_bytes(obj: Any) -> bool:
    """Whether it is a view of `bytes`, or released.

    Others stay: while a view exists, the memory cannot be resized, and the table would keep the view alive.
    """
    return type(obj) is memoryview and isinstance(owner_of(obj), (bytes, type(None)))


def cannot_leave(obj: Any) -> tuple[str, str] | None:
    """Like `bound_to_process`, except for objects that have a counterpart on the other side."""
    if standard_stream(obj) or obj is threading.main_thread() or finished_future(obj):
        return None
    if type(obj) in LOCKS and not held_by_another_thread(obj):
        return None
    if is_closed_file(obj) or shows_bytes(obj):
        return None
    return cannot_leave(obj.__self__) if isinstance(obj, METHODS) else bound_to_process(obj)


def why_without(package: str) -> tuple[str, str]:
    """The reason and hint for an object of a package that the other end lacks."""
    return (
        f"is from the package {package!r}, which is not installed for ordinary cells,",
        f"run '%pip install {package}' in an ordinary cell, then run the cell that made it again",
    )


def may_be_guilty(obj: Any) -> bool:
    """Whether another object of this type may be bound to its process, although this one is not."""
    if finished_future(obj) or hasattr(type(obj), "fileno") or isinstance(obj, type):
        return True
    return isinstance(obj, (io.IOBase, threading.Thread, memoryview, *LOCKS, *METHODS))


def describe_failure(obj: object, error: BaseException) -> tuple[str, str]:
    """For an object of an unknown kind whose own pickling failed."""
    text = str(error) or type(error).__name__
    return f"is a {name_of_type(type(obj))!r} object that cannot be pickled ({text[:200]})", "create it inside the cell"


_ = socket  # imported with the kernel; used here so that `_BY_BASE` finds it
