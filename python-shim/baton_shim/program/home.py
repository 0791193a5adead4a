"""A program's end of its blocks: what it keeps between them, and the helper process that serves it.

**Invariant:** the helper starts with the first block, and ends with the program.
"""

from __future__ import annotations

import atexit
import functools
import getpass
import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from baton_shim.base import here
from baton_shim.base.interrupts import Interrupts
from baton_shim.notebook.helper import Helper
from baton_shim.notebook.home import Home
from baton_shim.notebook.outputs import Question, asked
from baton_shim.program import switch
from baton_shim.program.shell import ProgramShell
from baton_shim.program.terminal import Terminal
from baton_shim.program.tracebacks import show_without_own_frames
from baton_shim.program.words import reworded
from baton_shim.state.errors import GpuServiceError
from baton_shim.virtual import SWITCH

if TYPE_CHECKING:
    from baton_shim.base.blocks import Work
    from baton_shim.base.link import Link
    from baton_shim.base.local_modules import LocalModules
    from baton_shim.notebook.options import Options
    from baton_shim.notebook.results import Returned


HELPER_GONE = "run it again; the next block starts another helper"


class ProgramHome(Home):
    ending = None

    def __init__(self, modules: LocalModules) -> None:
        self._helper: Helper | None = None
        self._unit = "block"
        self.terminal = Terminal()
        shell = ProgramShell()
        here.PROGRAM.shell = shell
        Interrupts.also_ignored = False
        switch.read_setting()
        super().__init__(shell, self._start, modules)
        self.surroundings.settings.begins_as_program()

    def _attach(self, shell: Any) -> None:
        here.watch_images()
        SWITCH.begin()
        show_without_own_frames()
        atexit.register(self._end)
        os.register_at_fork(after_in_child=self._forked)

    @functools.cached_property
    def undo_log(self) -> Any:
        from baton_shim.notebook.undo import NoUndo

        return NoUndo()

    @property
    def name(self) -> str:
        name = os.path.basename(sys.argv[0] if sys.argv else "")
        return "python" if name in ("", "-", "-c", "-m") else name

    def run_block(self, work: Work, options: Options) -> tuple[int, Any]:
        self._begin(work.unit)
        _ = self.link  # the helper provides the library that finds changed memory
        try:
            return super().run_block(work, options)
        except GpuServiceError as error:
            if self._helper is not None and not self._helper.is_running:
                error.hint = HELPER_GONE
            raise
        finally:
            self.terminal.remove_status()
            self._drop_dead_helper()

    def map(self, *arguments: Any) -> list[Any]:
        self._begin("call")
        return super().map(*arguments)

    def _begin(self, unit: str) -> None:
        self._unit = unit
        known = self.shell.history_manager.input_hist_raw
        if len(known) == 1:
            known.append(main_source())  # patches by the program are found in its source
        self._drop_dead_helper()

    def _remote_begins(self) -> None:
        pass

    def _remote_ends(self, calls: range, returned: Returned | None, error: BaseException | None) -> None:
        shown, self.displays_after = self.displays_after, []
        for kind, content in shown:
            self.show({"kind": kind, "content": content})

    # ---- what is shown

    def show(self, output: dict[str, Any]) -> None:
        self.terminal.show(output)

    def ask(self, question: Question, interrupts: Interrupts) -> str | None:
        self.terminal.remove_status()
        return asked(getpass.getpass if question.password else input, question, interrupts)

    def show_status(self, line: dict[str, Any]) -> None:
        self.terminal.show_status(self._text_of(line))

    def show_progress(self, text: str, *, first: bool, last: bool) -> None:
        (self.terminal.show_summary if last else self.terminal.show_status)(reworded(text, self._unit))

    def summarise(self, line: dict[str, Any], *, of_block: bool) -> None:
        self.terminal.show_summary(self._text_of(line))

    def _text_of(self, line: dict[str, Any]) -> str:
        return reworded(json.loads(line["content"])["data"]["text/plain"], self._unit)

    # ---- the helper

    def _start(self) -> Link:
        self._helper = Helper(self.folder, self.name)
        return self._helper.link

    def _drop_dead_helper(self) -> None:
        """The next block then starts another helper, and a new session."""
        if self._helper is not None and not self._helper.is_running:
            self._end()
            self.void()

    def _end(self) -> None:
        helper, self._helper = self._helper, None
        self._link = None
        if helper is not None:
            helper.close()

    def _forked(self) -> None:
        """A fork has the variables, and gets its own helper and session."""
        helper, self._helper = self._helper, None
        self._link = None
        self._table, self.turn, self.busy = None, threading.RLock(), False
        self.unreleased.clear()
        if helper is not None:
            helper.forget()


def main_source() -> str:
    """The source of the program's own file; empty if it has none."""
    try:
        with open(sys.modules["__main__"].__file__ or "", encoding="utf-8", errors="replace") as file:
            return file.read()
    except (OSError, AttributeError, ValueError):
        return ""
