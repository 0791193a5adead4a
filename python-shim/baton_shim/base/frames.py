"""Tracebacks without this package's own frames: a student sees the cell's frames and those of the libraries it uses.

If a library call used something that stayed in the other kernel, the traceback ends at that call, because no line of
the library is at fault.

`%env BATON_TRACEBACKS=whole` in the notebook shows all frames.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterator
from types import CodeType, TracebackType
from typing import Any

from baton_shim.base.local_modules import is_installed

FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
VARIABLE = "BATON_TRACEBACKS"


def is_hidden(code: CodeType) -> bool:
    """Whether frames of this code are left out of tracebacks."""
    return code.co_filename.startswith(FOLDER) and os.environ.get(VARIABLE) != "whole"


_of_blocks: deque[TracebackType] = deque(maxlen=16)


def block_trace(trace: TracebackType) -> TracebackType:
    """Records the first frame of a block. The frame before it, of the same function, is at its `with gpu:`."""
    _of_blocks.append(trace)
    return trace


def _is_doubled(trace: TracebackType | None) -> bool:
    """Whether this frame is at a `with gpu:` and the frame of its block follows."""
    inner = trace.tb_next if trace is not None else None
    if trace is None or inner is None or not any(inner is one for one in _of_blocks):
        return False
    outer, block = trace.tb_frame.f_code, inner.tb_frame.f_code
    return (outer.co_filename, outer.co_qualname) == (block.co_filename, block.co_qualname)


def hide(error: BaseException) -> None:
    """Hides frames in the traceback of the error, and of the errors that led to it."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        chain += [link.__cause__, link.__context__]
        trace = link.__traceback__
        if getattr(link, "ends_at_the_call", False):
            _end_at_the_call(trace)
        while trace is not None:
            while (inner := trace.tb_next) is not None and (is_hidden(inner.tb_frame.f_code) or _is_doubled(inner)):
                trace.tb_next = inner.tb_next
            trace = trace.tb_next


def _end_at_the_call(trace: TracebackType | None) -> None:
    """Cuts the traceback after the last call by the student's own code, in the cell or in a module."""
    if os.environ.get(VARIABLE) == "whole":
        return
    last = None
    while trace is not None:
        code = trace.tb_frame.f_code
        if not (is_installed(code.co_filename) or is_hidden(code)):
            last = trace
        trace = trace.tb_next
    if last is not None:
        last.tb_next = None


def hide_from_tracebacks(replace: Callable[[Any, str, Any], object] = setattr) -> None:
    """Hides frames in errors that a cell itself prints, formats or logs.

    Called in sessions once the other modules are loaded, and with virtual CUDA for torch.
    """
    import traceback

    def hiding(walk: Any) -> Any:
        @functools.wraps(walk)
        def walked(trace: Any) -> Iterator[Any]:
            return (place for place in walk(trace) if not is_hidden(place[0].f_code))

        return walked

    for name in ("walk_tb", "_walk_tb_with_full_positions"):
        if hasattr(traceback, name):  # the second since Python 3.11
            replace(traceback, name, hiding(getattr(traceback, name)))
