"""Runs a block of `with gpu:`, or the call of an `@gpu` function, in place of a cell's code.

**Invariant:** the traceback of an error that it raises begins with the block's own frames.
"""

from __future__ import annotations

import inspect
from types import TracebackType
from typing import Any

from baton_shim.base import cell_blocks
from baton_shim.base.blocks import BLOCK, DONE, EXIT, RETURN, OnGpuMachine, in_file

_RUN = '__import__("IPython").get_ipython().kernel.blocks.run_{}()'
Block = tuple[tuple[bytes, str] | None, Any, tuple[Any, ...], dict[str, Any]]
"""The code, or a function and its arguments."""


class SessionBlocks(OnGpuMachine):
    """The kernel that the package `baton` uses in a session."""

    def __init__(self, shell: Any) -> None:
        self._namespace: dict[str, Any] = shell.user_ns
        self._block: Block | None = None
        self._ended: tuple[int, Any] = DONE, None
        cell_blocks.begin(self, shell)

    def begin(self, block: Block | None, code: str) -> str:
        """The code to run: the cell's own, or a call that runs the block."""
        self._block, self._ended = block, (DONE, None)
        if block is None:
            return code
        module, function, _, _ = block
        awaits = inspect.iscoroutinefunction(function) or (module and in_file(*module).co_flags & inspect.CO_COROUTINE)
        return f"await {_RUN.format('awaiting')}" if awaits else _RUN.format("now")

    def end(self) -> tuple[Any, tuple[int, Any]]:
        """What the block was given and may have changed, and how it ended."""
        assert self._block is not None
        (_, function, arguments, keywords), self._block = self._block, None
        ended, self._ended = self._ended, (DONE, None)
        self._namespace.pop(EXIT, None)  # from a block that recorded how it ends, and then failed
        is_of_notebook = function is None or function.__globals__ is self._namespace
        given = (function and function.__closure__ if is_of_notebook else function, arguments, keywords)
        return given if any(given) else None, ended

    def run_now(self) -> None:
        self._note(self._start())

    async def run_awaiting(self) -> None:
        self._note(await self._start())

    def _start(self) -> Any:
        assert self._block is not None
        code, function, arguments, keywords = self._block
        return eval(in_file(*code), self._namespace) if code is not None else function(*arguments, **keywords)

    def _note(self, result: Any) -> None:
        assert self._block is not None
        code, function, _, _ = self._block
        if code is not None:
            self._ended = self._namespace.pop(EXIT, DONE), None
        elif function.__name__ == BLOCK:
            self._ended = result if result is not None else (DONE, None)
        else:
            self._ended = RETURN, result


def own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The part of the traceback that belongs to the block."""
    found = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == __file__:
            found = trace.tb_next
        trace = trace.tb_next
    return found
