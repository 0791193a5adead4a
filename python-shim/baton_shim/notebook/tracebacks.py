"""How the notebook shows errors that a session raised."""

from __future__ import annotations

import functools
import sys
from typing import Any

from IPython.core.error import UsageError

from baton_shim.base import frames


def wrap_showtraceback(shell: Any) -> None:
    """Shows the session's lines for every kind of exception; IPython's own `_render_traceback_` misses some kinds."""
    show_here = shell.showtraceback

    @functools.wraps(show_here)
    def showtraceback(exc_tuple: Any = None, *arguments: Any, **options: Any) -> None:
        from baton_shim.state import errors

        error = exc_tuple[1] if exc_tuple else sys.exc_info()[1] or getattr(sys, "last_value", None)
        lines = errors.rendered(error) if isinstance(error, BaseException) else None
        if lines is None or isinstance(error, UsageError):  # IPython shows a UsageError as one line on stderr
            if error is not None:
                frames.hide(error)
            show_here(exc_tuple, *arguments, **options)
        else:
            kind, error, _ = shell._get_exc_info(exc_tuple)
            if (trace := errors.trace_of(error)) is not None:
                sys.last_traceback = trace
            shell._showtraceback(kind, error, lines)

    shell.showtraceback = showtraceback


def wrap_set_custom_exc(shell: Any) -> None:
    """Gives a handler set with `set_custom_exc` the session's frames instead of Baton's."""
    set_here = shell.set_custom_exc

    @functools.wraps(set_here)
    def set_custom_exc(exc_tuple: Any, handler: Any) -> None:
        set_here(exc_tuple, handler)
        handle = shell.CustomTB

        def handle_in_cell(kind: Any, error: Any, trace: Any, tb_offset: Any = None) -> Any:
            from baton_shim.state import errors

            return handle(kind, error, errors.trace_of(error) or trace, tb_offset)

        shell.CustomTB = handle_in_cell

    shell.set_custom_exc = set_custom_exc
