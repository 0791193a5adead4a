"""Warnings, errors of threads and printed tracebacks, without the frames of this package that torch calls go through.

Python and torch's C++ take the place of a warning from the stack, where such a frame may be between torch and the
student's code. So a warning with such a place is issued again at the call of torch: filters then see the student's
module, and Python shows the warning once for each of the student's lines.

**Invariant:** costs nothing until there is something to report.
"""

from __future__ import annotations

import sys
import threading
import warnings
from types import FrameType
from typing import Any

from baton_shim.base import frames
from baton_shim.virtual.patches import Patches

_DISPATCH = "handle_torch_function"
"""The function with which a function of torch calls the mode instead of going on."""


def install(patches: Patches) -> None:
    frames.hide_from_tracebacks(patches.set)
    show_here = warnings._showwarnmsg  # type: ignore[attr-defined]
    report_here = threading.excepthook

    def show(message: warnings.WarningMessage) -> None:
        ours = frame_of(message) if message.filename.startswith(frames.FOLDER) else None
        caller = caller_of(ours)
        if ours is None or caller is None:
            show_here(message)
            return
        ours.f_globals.pop("__warningregistry__", None)  # Python shall not remember this place
        warnings.onceregistry.pop((str(message.message), message.category), None)  # type: ignore[attr-defined]
        variables = caller.f_globals
        warnings.warn_explicit(
            message.message,
            message.category,
            caller.f_code.co_filename,
            caller.f_lineno,
            variables.get("__name__"),
            variables.setdefault("__warningregistry__", {}),
            variables,
            message.source,
        )

    def report(args: Any) -> None:
        if args.exc_value is not None:
            frames.hide(args.exc_value)
        report_here(args)

    patches.set(warnings, "_showwarnmsg", show)
    patches.set(threading, "excepthook", report)


def frame_of(message: warnings.WarningMessage) -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != message.filename:
        frame = frame.f_back
    return frame


def caller_of(ours: FrameType | None) -> FrameType | None:
    """The first frame outside of this package, apart from those that only passed the call on to it."""
    frame = ours
    while frame is not None:
        if frames.is_hidden(frame.f_code):
            frame = frame.f_back
        elif frame.f_code.co_name == _DISPATCH:
            frame = frame.f_back and frame.f_back.f_back
        else:
            break
    return None if frame is ours else frame
