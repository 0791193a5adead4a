"""The shell of a session: IPython as in any kernel, but result and error of a cell are kept for the way home.

The notebook kernel makes `execute_result`, `error`, `Out`, history and prompts of them; streams and displays go out
on the session's iopub as usual.

**Invariant:** the shell publishes neither a result nor an error itself.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any, NamedTuple

from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.jsonutil import encode_images, json_clean
from ipykernel.zmqshell import ZMQInteractiveShell
from traitlets import Type

from baton_shim.source import as_written


class Result(NamedTuple):
    value: Any
    data: dict[str, Any]
    metadata: dict[str, Any]


class SessionDisplayHook(ZMQShellDisplayHook):  # type: ignore[misc]
    """Formats where the object lives and keeps both; several results in one cell are displayed, except the last."""

    result: Result | None = None
    cell = ""
    """The transformed source that runs, for the semicolon at its end."""

    def __call__(self, result: Any = None) -> None:
        self.check_for_underscore()
        if result is None or self.semicolon_at_end_of_expression(self.cell):
            return
        if self.result is not None:
            self.shell.display_pub.publish(self.result.data, self.result.metadata)
        data, metadata = self.compute_format_data(result)
        self.fill_exec_result(result)
        sys.stdout.flush()
        sys.stderr.flush()
        self.result = Result(result, json_clean(encode_images(data)), json_clean(metadata or {}))

    def take(self) -> Result | None:
        result, self.result = self.result, None
        return result


class SessionShell(ZMQInteractiveShell):  # type: ignore[misc]
    displayhook_class = Type(SessionDisplayHook)

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        from baton_shim.state import StayedError

        sys.stdout.flush()
        sys.stderr.flush()
        if issubclass(etype, StayedError):
            stb = [*stb, "hint: the cell may use what holds it, but not this part; create it inside the cell"]
        self._last_traceback = [as_written(lines) for lines in stb]

    def showtraceback(self, exc_tuple: Any = None, *arguments: Any, **options: Any) -> None:
        try:
            kind, error, trace = self._get_exc_info(exc_tuple)
        except ValueError:  # there is none
            return
        if isinstance(error, BaseExceptionGroup):  # which IPython would print to stderr
            while trace is not None and trace.tb_frame.f_code.co_filename not in self.compile._filename_map:
                trace = trace.tb_next  # IPython's own frames
            lines = "".join(traceback.format_exception(kind, error, trace)).splitlines()
            self._showtraceback(kind, error, lines)
        else:
            super().showtraceback(exc_tuple, *arguments, **options)

    def show_usage_error(self, exc: BaseException) -> None:
        """The notebook kernel prints it."""

    def ask_exit(self) -> None:
        sys.stderr.write("exit() and quit() in a %%gpu cell end neither the notebook nor its session\n")
