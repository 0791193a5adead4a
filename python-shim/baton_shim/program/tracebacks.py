"""Removes this package's frames from tracebacks that end a program.

**Invariant:** a program's own `sys.excepthook` is left alone.
"""

from __future__ import annotations

import sys
from types import TracebackType

from baton_shim.base import frames


def show_without_own_frames() -> None:
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = show


def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    while trace is not None and frames.is_hidden(trace.tb_frame.f_code):
        trace = trace.tb_next
    error.__traceback__ = trace
    frames.hide(error)
    sys.__excepthook__(kind, error, trace)
