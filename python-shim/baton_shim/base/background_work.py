"""The student's code that may run in a kernel between cells: threads, and tasks of its event loop.

**Invariant:** only looks; changes nothing.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from baton_shim.base.closure import used_by

QUIET_THREADS = frozenset(
    "ipykernel IPython zmq tornado traitlets baton_shim concurrent tqdm debugpy _pydevd_bundle pydevd".split()
)
"""Packages whose threads never run the student's code by themselves."""


def has_background_work(shell: Any) -> bool:
    """Whether the student's code may run between two cells."""
    return any(map(is_alien, threading.enumerate())) or any(map(of_notebook(shell), tasks()))


def names_of_background_work(shell: Any) -> set[str]:
    """Names of the notebook that its background work may use."""
    quiet = QUIET_THREADS - {"concurrent"}  # executor threads run the student's functions
    threads = [thread for thread in threading.enumerate() if is_alien(thread, quiet)]
    waiting = [*filter(of_notebook(shell), tasks())]
    if not (threads or waiting):
        return set()
    stacks = sys._current_frames()
    frames = [frame for thread in threads for frame in stack(stacks.get(thread.ident or 0))]
    return used_by((*threads, *waiting, *frames), shell.user_ns)


def stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_alien(thread: threading.Thread, quiet: frozenset[str] = QUIET_THREADS) -> bool:
    """Whether the thread may run the student's code. `quiet`: packages whose threads do not."""
    if thread is threading.main_thread() or thread is threading.current_thread():
        return False
    target = getattr(thread, "_target", None)
    modules = (type(thread).__module__, getattr(target, "__module__", None) or "")
    return not any(module.partition(".")[0] in quiet for module in modules)


def tasks() -> Iterable[Any]:
    try:
        return asyncio.all_tasks()
    except RuntimeError:  # no loop runs in this thread
        return ()


def of_notebook(shell: Any) -> Callable[[Any], bool]:
    """A function that returns whether a task runs code of a cell."""
    files = getattr(shell.compile, "_filename_map", {})

    def is_of_notebook(task: Any) -> bool:
        code = getattr(task.get_coro(), "cr_code", None)
        return code is not None and code.co_filename in files

    return is_of_notebook
