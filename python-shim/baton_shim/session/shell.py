"""The shell of a session: IPython as in any kernel, but the result and error of a cell are kept for the notebook.

The notebook kernel uses them for `execute_result`, `error`, `Out`, history and prompts. Streams and displays go out on
the session's iopub as usual.

**Invariant:** the shell publishes neither the cell's result nor the error that ends it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.jsonutil import encode_images, json_clean
from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.error import UsageError
from IPython.core.events import EventManager
from IPython.core.magic import line_magic, magics_class
from IPython.core.magics.namespace import NamespaceMagics
from traitlets import Type

from baton_shim.base import frames
from baton_shim.base.originals import of_notebook
from baton_shim.base.source import as_written
from baton_shim.base.wire import CLEARS_RESULTS
from baton_shim.session import commands, downloads, hidden_files
from baton_shim.session.blocks import own_frames

if TYPE_CHECKING:
    from types import TracebackType

    from baton_shim.session.name_faults import NameFaults

# Magics that look into the namespace itself.
NEED_ALL_NAMES = frozenset("psearch reset reset_selective".split())
# Magics that need the history, which the notebook has.
OF_HISTORY = frozenset("history hist recall rep rerun macro save pastebin notebook".split())
# Magics that keep something in IPython's profile, of which a session has another one, for as long as it lives.
OF_PROFILE = frozenset("bookmark store".split())
# Magics for other clients of the kernel.
OF_CLIENTS = frozenset("connect_info qtconsole".split())


# IPython's warning about the exit that ends a cell or a block. The notebook raises the exit again, and warns itself
# unless it is meant for the code around a block.
HOW_TO_EXIT = ("ignore", re.compile("To exit: use"), UserWarning, None, 0)


class Result(NamedTuple):
    value: Any
    data: dict[str, Any]
    metadata: dict[str, Any]


class SessionDisplayHook(ZMQShellDisplayHook):  # type: ignore[misc]
    """Formats the result where its object is, and keeps both. Displays all but the last of several results."""

    result: Result | None = None
    cell: str | None = None
    """The transformed source of the running cell, needed for a semicolon at its end."""
    notebook_results: int = 0
    """How many results the notebook has (`Out`)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._earlier: list[Any] = []

    def __call__(self, result: Any = None) -> None:
        self.check_for_underscore()
        if result is None or self.semicolon_at_end_of_expression(self.cell or ""):
            return
        if self.result is not None:
            self.shell.display_pub.publish(self.result.data, self.result.metadata)
            self._earlier.append(self.result.value)
        data, metadata = self.compute_format_data(result)
        self.fill_exec_result(result)
        sys.stdout.flush()
        sys.stderr.flush()
        shown = Result(result, json_clean(encode_images(data)), json_clean(metadata or {}))
        if self.shell.cells_running > 1:  # a cell that the running cell runs
            self.shell.display_pub.publish(shown.data, shown.metadata)
        else:
            self.result = shown

    def flush(self) -> None:
        """`%reset` clears the results, which the notebook has."""
        super().flush()
        self.notebook_results = 0
        self.shell.payload_manager.write_payload({"source": CLEARS_RESULTS})

    def take(self) -> Result | None:
        result, self.result = self.result, None
        return result

    def take_earlier(self) -> list[Any]:
        """The values that were shown before the result, for `_` and `__` in the notebook."""
        earlier, self._earlier = self._earlier, []
        return earlier


OF_NOTEBOOK = {"In": list, "Out": dict}
"""What IPython bound in the notebook. Here, IPython hides only what it bound itself."""


@magics_class
class SessionNamespaceMagics(NamespaceMagics):  # type: ignore[misc]
    """`%who` lists the notebook's names; to filter or show types, it needs the values. `%reset out` counts results."""

    @line_magic  # type: ignore[untyped-decorator]
    def who_ls(self, parameter_s: str = "") -> list[str]:
        elsewhere: set[str] = set()
        if parameter_s.strip():
            self.shell.faults.fetch_all()
        else:
            elsewhere = {name for name in self.shell.faults.elsewhere() if not name.startswith("_")}
        names = elsewhere.union(super().who_ls(parameter_s))
        return sorted(names - {name for name, kind in OF_NOTEBOOK.items() if self._is_still(name, kind)})

    def _is_still(self, name: str, kind: type) -> bool:
        return type(self.shell.user_ns.get(name, kind())) is kind

    @line_magic  # type: ignore[untyped-decorator]
    def who(self, parameter_s: str = "") -> None:
        super().who(parameter_s)

    @line_magic  # type: ignore[untyped-decorator]
    def whos(self, parameter_s: str = "") -> None:
        self.shell.faults.fetch_all()
        super().whos(parameter_s)

    @line_magic  # type: ignore[untyped-decorator]
    def reset(self, parameter_s: str = "") -> None:
        names = self.shell.user_ns
        results = names.get("_oh", {})  # the notebook's own, if a cell has used it
        names["_oh"] = counted = dict.fromkeys(range(self.shell.displayhook.notebook_results))  # for IPython's message
        try:
            super().reset(parameter_s)
        finally:
            if not counted:
                results.clear()
            if names.get("_oh") is counted:
                names["_oh"] = results


class SessionEvents(EventManager):  # type: ignore[misc]
    """Delays some callbacks after a cell until the cell has ended in the notebook: those of the notebook, and what
    other callbacks display, such as matplotlib's figures. The notebook shows the cell's value or error first.
    """

    def trigger(self, event: str, *arguments: Any, **named: Any) -> None:
        everyone = self.callbacks[event]
        others = [one for one in everyone if not (of_notebook(one) or self._waits_for_the_cell(one))]
        self.callbacks[event] = now = list(others)
        kept = event in ("post_execute", "post_run_cell") and not self.shell.cells_running
        if kept:
            self.shell.display_pub.register_hook(self.shell.keep_display)
        try:
            super().trigger(event, *arguments, **named)
        finally:
            # A callback may register others, or unregister itself.
            everyone[:] = [one for one in everyone if one in now or one not in others]
            everyone += [one for one in now if one not in others]
            self.callbacks[event] = everyone
            if kept:
                self.shell.display_pub.unregister_hook(self.shell.keep_display)

    def _waits_for_the_cell(self, callback: Any) -> bool:
        """After a block, the cell continues with its figures; the notebook shows and closes them at its end."""
        return self.shell.block_runs and getattr(callback, "__name__", "") == "flush_figures"


class SessionShell(ZMQInteractiveShell):  # type: ignore[misc]
    displayhook_class = Type(SessionDisplayHook)
    faults: NameFaults
    custom_handler: tuple[Any, Any] | None = None
    """What the cell gave to `set_custom_exc`, for the notebook, which handles the error that ends the cell."""
    cells_running = 0
    """The number of running cells: the cell, and those that it runs itself."""
    _cell_source = ""
    _is_expanded = False
    """Whether the variables in the command that runs have been replaced already."""
    block_runs = False
    """Whether the running code is a block of a cell of the notebook."""
    block_frames: TracebackType | None = None
    """The frames of the error that ended the running block."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._displays_after: list[tuple[str, str]] = []
        super().__init__(*arguments, **options)

    async def run_cell_async(self, *arguments: Any, **options: Any) -> Any:
        self.cells_running += 1
        try:
            return await super().run_cell_async(*arguments, **options)
        finally:
            self.cells_running -= 1

    def keep_display(self, message: dict[str, Any]) -> None:
        self._displays_after.append((message["msg_type"], json.dumps(message["content"])))

    def take_displays_after(self) -> list[tuple[str, str]]:
        """The kind and content of each message that was displayed after the cell."""
        shown, self._displays_after = self._displays_after, []
        return shown

    def init_events(self) -> None:
        super().init_events()
        self.events.__class__ = SessionEvents

    def init_magics(self) -> None:
        super().init_magics()
        self.register_magics(SessionNamespaceMagics)

    def set_custom_exc(self, exc_tuple: Any, handler: Any) -> None:
        super().set_custom_exc(exc_tuple, handler)
        self.custom_exceptions, self.custom_handler = (), (exc_tuple, handler)

    def transform_cell(self, raw_cell: str) -> str:
        """Transforms the cell itself once.

        ipykernel asks for it, to see whether the cell awaits. IPython asks again, and also for code that magics run.
        """
        known: str | None = self.displayhook.cell
        if known is not None and raw_cell == self._cell_source:
            return known
        transformed: str = super().transform_cell(raw_cell)
        if known is None:
            self._cell_source, self.displayhook.cell = raw_cell, transformed
        return transformed

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> Any:
        if magic_name in OF_HISTORY:
            raise UsageError(f"%{magic_name} reads the notebook's history\nhint: write it in a cell without %%gpu")
        if magic_name in OF_PROFILE:
            raise UsageError(
                f"%{magic_name} uses the notebook's IPython profile, which a session does not have\n"
                "hint: write it in a cell without %%gpu"
            )
        if magic_name in OF_CLIENTS:
            raise UsageError(
                f"%{magic_name} is for clients of the notebook kernel; no client can connect to its session\n"
                "hint: write it in a cell without %%gpu"
            )
        if magic_name.startswith("gpu_"):
            raise UsageError(f"%{magic_name} is for the notebook\nhint: write it in a cell without %%gpu")
        if magic_name in NEED_ALL_NAMES:
            self.faults.fetch_all()
        return super().run_line_magic(magic_name, line, _stack_depth + 1)

    def run_cell_magic(self, magic_name: str, line: str, cell: str) -> Any:
        if magic_name == "gpu":
            raise UsageError("The cell has a second line with %%gpu\nhint: delete one of them")
        return super().run_cell_magic(magic_name, line, cell)

    def system(self, cmd: str) -> None:
        command = self.var_expand(cmd, depth=1)  # here, because it looks into the frame of the caller
        if commands.has_terminals():
            self._is_expanded = True
            try:
                super().system(command)
            finally:
                self._is_expanded = False
        else:
            self._run_without_terminal(command)
        hint = downloads.hint_for_command(cmd, self.user_ns.get("_exit_code"))
        if hint is not None:
            sys.stderr.write(f"hint: {hint}\n")

    def var_expand(self, cmd: str, depth: int = 0, *formatter: Any) -> str:
        return cmd if self._is_expanded else super().var_expand(cmd, depth + 1, *formatter)

    def _run_without_terminal(self, command: str) -> None:
        if command.rstrip().endswith("&"):
            raise OSError("Background processes not supported.")
        self.user_ns["_exit_code"] = status = commands.run(command)
        if self.system_raise_on_error and status:
            raise subprocess.CalledProcessError(status, command)

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        from baton_shim.state import StandInError

        sys.stdout.flush()
        sys.stderr.flush()
        if isinstance(evalue, StandInError):
            stb = [*stb, f"hint: {evalue.hint}"]
        elif (hint := downloads.hint_for_error(evalue) or hidden_files.hint_for_error(evalue)) is not None:
            stb = [*stb, f"hint: {hint}"]
        self._last_traceback = [as_written(lines) for lines in stb]
        if self.cells_running > 1:
            super()._showtraceback(etype, evalue, self._last_traceback)

    def showtraceback(self, exc_tuple: Any = None, *arguments: Any, **options: Any) -> None:
        """The error that ends the cell is sent to the notebook. Other errors, such as those of `%tb`, of a failing
        `_repr_html_` or of a cell that the running cell runs, are shown in place.
        """
        try:
            kind, error, trace = self._get_exc_info(exc_tuple)
        except ValueError:
            super().showtraceback(exc_tuple, *arguments, **options)  # reports that there is no error
            return
        if trace is not None and (own := own_frames(trace)) is not None:
            trace.tb_next = self.block_frames = own
        frames.hide(error)
        if isinstance(error, BaseExceptionGroup):  # IPython would print it to stderr
            while trace is not None and trace.tb_frame.f_code.co_filename not in self.compile._filename_map:
                trace = trace.tb_next  # a frame of IPython
            lines = "".join(traceback.format_exception(kind, error, trace)).splitlines()
            self._showtraceback(kind, error, lines)
        else:
            super().showtraceback(exc_tuple, *arguments, **options)
        ends_code = options.get("running_compiled_code") or options.get("exception_only")
        if ends_code and issubclass(kind, SystemExit) and self.cells_running <= 1:
            warnings.filters.insert(0, HOW_TO_EXIT)  # type: ignore[attr-defined]
        if not ends_code and self.cells_running <= 1:
            if issubclass(kind, UsageError):
                super().show_usage_error(error)
            else:
                super()._showtraceback(kind, error, self._last_traceback)

    def cell_ended(self) -> None:
        if HOW_TO_EXIT in warnings.filters:
            warnings.filters.remove(HOW_TO_EXIT)  # type: ignore[attr-defined]

    def show_usage_error(self, exc: BaseException) -> None:
        """Shows nothing: the notebook kernel prints the error."""

    def ask_exit(self) -> None:
        sys.stderr.write("exit() and quit() in a %%gpu cell do not end the notebook or its session\n")


# Programs check these names to find out whether they run in a notebook.
SessionShell.__name__, SessionShell.__module__ = ZMQInteractiveShell.__name__, ZMQInteractiveShell.__module__
