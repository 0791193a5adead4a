"""`%%both` in the notebook kernel: the cell runs as an ordinary one, and is recorded for the sessions.

A transformer turns the line of the magic into a comment, so IPython runs the cell itself: value, errors and interrupts
are those of any cell. Its code is recorded when it ends, unless it failed.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import no_var_expand

from baton_shim.base.both import BothCell
from baton_shim.notebook.mistakes import catch
from baton_shim.notebook.setters import MAY_SET

if TYPE_CHECKING:
    from baton_shim.notebook.home import Home

LINE = re.compile(r"[ \t]*%%both[ \t]*\r?\n?$")
ABOVE = re.compile(r"[ \t]*(?:#.*|%%(?:time|capture)\b.*)?\r?\n?$")
"""What may precede the line: comments, and magics that run the cell in this kernel."""
MOST_BYTES = 2**20
EXPLANATION = (
    "Put %%both (two percent signs) on the first line of a cell that configures a library: the cell runs here and, "
    "before the next %%gpu cell, in its session, and again in each new session"
)


def register(shell: Any, home: Home | None) -> None:
    """Without a `home` there are no sessions, and such a cell runs like any other."""

    @no_var_expand  # type: ignore[untyped-decorator]
    def both(line: str, cell: str | None = None) -> None:
        """Run this cell in the notebook and in the session of its `%%gpu` cells, and again in each new session.

        For the hidden state of libraries: seeds, policies, registered functions. The output is shown once. In a session
        the cell has the notebook's variables as they were when it ran, and what it assigns stays there.
        """
        if cell is None and not line.strip():
            print(EXPLANATION)
        elif line.strip():
            raise UsageError("%%both takes no options\nhint: put nothing else on its line")
        else:
            raise UsageError("%%both is above another cell magic\nhint: put %%time or %%capture above %%both")

    @no_var_expand  # type: ignore[untyped-decorator]
    def misplaced(line: str) -> None:
        """`%%both` below other code: an error."""
        raise UsageError("%%both is below other code\nhint: make it the first line of its cell")

    shell.register_magic_function(both, "line_cell", "both")
    catch(shell, "line", {"%both": misplaced})
    if as_comment not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(as_comment)
    if home is not None:
        noting = BothRecorder(home)
        shell.events.register("pre_run_cell", noting.cell_begins)
        shell.events.register("post_run_cell", noting.cell_ended)


def place_of(lines: list[str]) -> int | None:
    """The line of the magic, if it makes this a cell for both."""
    for number, line in enumerate(lines):
        if LINE.match(line):
            below = next((text for text in lines[number + 1 :] if text.strip()), "")
            return None if below.lstrip().startswith("%%") else number
        if not ABOVE.match(line):
            return None
    return None


def as_comment(lines: list[str]) -> list[str]:
    """IPython's input transformer: replaces the line of the magic, so that the cell runs as an ordinary one."""
    number = place_of(lines)
    return lines if number is None else [*lines[:number], f"# {lines[number].lstrip()}", *lines[number + 1 :]]


class BothRecorder:
    """Records the `%%both` cells that succeed, and which settings of libraries other cells change."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._begun: tuple[str, str, bytes] | None = None

    def cell_begins(self, info: Any) -> None:
        raw = info.raw_cell or ""
        lines = raw.splitlines(keepends=True)
        number = place_of(lines) if "%%both" in raw else None
        if number is None:
            return
        shell = self._home.shell
        code = shell.transform_cell("".join(lines[number + 1 :]))
        try:
            given = self._given(code)
        except SyntaxError:  # the cell reports it itself
            return
        self._begun = raw, code, given

    def cell_ended(self, result: Any) -> None:
        self._note(result)
        raw = result.info.raw_cell or ""
        if MAY_SET.search(raw) is not None and result.execution_count is not None:
            shell = self._home.shell
            both = "%%both" in raw and place_of(raw.splitlines(keepends=True)) is not None
            self._home.setters.cell_ended(
                result.execution_count, shell.transform_cell(raw), self._home.namespace, both and result.success
            )

    def _note(self, result: Any) -> None:
        if self._begun is None or self._begun[0] != result.info.raw_cell:
            return  # a cell that the running cell runs
        (_, code, given), self._begun = self._begun, None
        if result.success:
            self._home.modules.both.cells.append(BothCell(result.execution_count, code, given))

    def _given(self, code: str) -> bytes:
        """Pickles the variables that the code reads, except those that cannot be pickled or are large.

        The session reports a missing name.
        """
        import cloudpickle

        from baton_shim.base.bytecode import code_names

        namespace = self._home.namespace
        compiled = compile(code, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        values = {}
        for name in code_names(compiled, module_level=True).loads & namespace.keys():
            try:
                if len(cloudpickle.dumps(namespace[name])) <= MOST_BYTES:
                    values[name] = namespace[name]
            except Exception:  # any error of a library's pickling
                continue
        found: bytes = cloudpickle.dumps(values)
        return found
