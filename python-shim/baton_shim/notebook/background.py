"""`%%gpu --background`: cells that run in the session while the notebook goes on.

A background cell is lent what it was given: names, the objects that they reach, and their memory. Code of the notebook
that touches any of it waits until the cell has ended; all other code runs. So the result is the same as that of running
the cells one after another. The cells of a notebook share one session, so they run in the order in which they were
submitted, and what a waiting cell will be given is lent as well.

A cell's changes are applied between two cells of the notebook, all or none, like those of a cell in the foreground.

**Invariant:** code of the notebook never sees anything that a background cell may still change, nor part of its
changes.
"""

from __future__ import annotations

import contextvars
import functools
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from baton_shim.base.interrupts import Interrupts, postponed
from baton_shim.base.job import Job, held_by
from baton_shim.base.link import LinkClosed, Message
from baton_shim.notebook import analysis, outputs
from baton_shim.notebook.again import Cell, described
from baton_shim.notebook.call import Call, given_up, names_of, proxy_gone
from baton_shim.notebook.deferred import SAID_AFTER_SECONDS, TICK_SECONDS, NotYetHere
from baton_shim.notebook.lent import Lent, Uses, uses_of
from baton_shim.state import errors

if TYPE_CHECKING:
    from contextvars import ContextVar

    from baton_shim.notebook.cell import NotebookCell
    from baton_shim.notebook.home import Home
    from baton_shim.notebook.options import Options

_MISSING = object()


class BackgroundCell:
    """A background cell whose results have not been applied yet."""

    def __init__(self, cell: NotebookCell, options: Options, lent: Lent) -> None:
        self.cell, self.options, self.lent = cell, options, lent
        self.job = Job(cell.number, cell.unit)
        self.call: Call | None = None
        """None while it waits for earlier cells."""
        self.sent = False
        """Whether the proxy has read its variables. Until then, nothing of the notebook may change."""
        self.end: Message | None = None
        self.questions: list[Message] = []
        """Requests for names that it looks up; answered when no code of the notebook runs."""


class Background:
    """The background cells of one notebook, in the order in which they run."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._cells: deque[BackgroundCell] = deque()
        self.jobs: deque[Job] = deque(maxlen=100)
        """The jobs of all cells, the latest one last."""
        self._code_runs = False
        self._carried: list[tuple[ContextVar[Any], Any, Any]] = []
        """Context variables that a result has set in a callback of the event loop, which has its own context."""
        home.shell.events.register("post_execute", self._code_ended)

    def text(self) -> str:
        """The text of `%gpu_jobs`."""
        return "\n".join(f"{place(job)}: {job.status}" for job in self.jobs)

    def has_number(self, number: str) -> bool:
        """Whether one of its cells has this number."""
        return number.isdecimal() and any(job.number == int(number) for job in self.jobs)

    def cancel_number(self, number: int) -> str:
        """Returns what was done. Raises UsageError."""
        jobs = [job for job in self.jobs if job.number == number and not job.done()]
        if not jobs:
            raise UsageError(f"In[{number}] is not running in the background\nhint: %gpu_jobs lists background cells")
        for job in jobs:
            job.cancel()
        return f"In[{number}] is {'cancelled' if all(job.done() for job in jobs) else 'being cancelled'}"

    @property
    def is_empty(self) -> bool:
        return not self._cells

    # ---- a new cell ----

    def submit(self, cell: NotebookCell, options: Options) -> Job:
        """Raises if the cell cannot be sent. A call is sent when the cell that makes it has ended."""
        home = self._home
        if not on_main_thread():
            raise UsageError("A subshell cannot run cells in the background\nhint: run it in the notebook itself")
        names = names_of(cell)
        home.deferred.fetch()
        one = BackgroundCell(cell, options, Lent(self._uses(cell, names, options)))
        if any(options.background in other.lent.names() for other in (one, *self._cells)):
            name = options.background
            raise UsageError(f"--background {name}: a background cell uses this variable\nhint: choose another name")
        with postponed():
            if self.is_empty and cell.block is None:
                with Interrupts() as interrupts:
                    self._depart(one, names, interrupts)
            else:
                self._lend(one)
            self._cells.append(one)
            self.jobs.append(one.job)
            one.job.attach(self)
            home.deferred.listen()
        return one.job

    def _uses(self, cell: NotebookCell, names: analysis.CellNames, options: Options) -> Uses:
        uses = self._uses_of(names, cell.given())
        return uses._replace(reads=(uses.reads | options.keep) - options.drop, writes=uses.writes - options.drop)

    def _uses_of(self, names: analysis.CellNames, objects: Iterable[object] = ()) -> Uses:
        shell = self._home.shell
        visible = analysis.visible_names(self._home.namespace, shell.user_ns_hidden)
        return uses_of(names, self._home.namespace, visible, objects)

    def _footprint(self, names: Iterable[str], objects: Iterable[object] = ()) -> Any:
        namespace = self._home.namespace
        values = [namespace[name] for name in names if name in namespace]
        return self._home.table.footprint([*values, *objects], held_by)

    def _depart(self, one: BackgroundCell, names: analysis.CellNames, interrupts: Interrupts) -> None:
        home = self._home
        if home.modules.packages.has_newly_installed():
            home.void()
        one.call = Call(home, one.cell, one.options)
        one.sent = False
        try:
            one.call.send(names, interrupts)
        except LinkClosed:
            home.void()
            raise proxy_gone() from None
        self._lend(one)
        one.job.status = "running"
        home.comms.cell_begins()
        home.pages.cell_begins(one.cell.number, one.cell.parent)

    def _lend(self, one: BackgroundCell) -> None:
        """Lends the cell what it was given so far, or will be given."""
        departure = one.call.departure if one.call is not None else None
        names = departure.names if departure is not None else one.lent.uses.reads
        one.lent.add(names, self._footprint(names, one.cell.given()))

    # ---- what the proxy sends ----

    def takes(self, message: Message) -> bool:
        """Handles a message of a background cell; returns whether it was one."""
        one = self._cells[0] if self._cells else None
        if one is None or one.call is None or message.body.get("call") != one.call.number:
            return False
        if message.name in ("finished", "failed"):
            one.end, one.sent = message, True
        elif message.name == "released":
            one.sent = True
            self._home.released(one.call.number)
        elif message.name == "names_wanted":
            one.questions.append(message)
        elif message.name == "state_wanted":
            one.sent = False
            with Interrupts() as interrupts:
                one.call.meanwhile(message, interrupts)
            self._lend(one)
        elif message.name == "input_wanted":
            self._home.link.send("input", call=one.call.number, value=None)
        if not self._code_runs:
            self.advance()
        return True

    def advance(self) -> None:
        """Does the work that is allowed only while no code of the notebook runs."""
        while self._cells and (one := self._cells[0]).call is not None:
            while one.questions:
                with Interrupts() as interrupts:
                    one.call.meanwhile(one.questions.pop(0), interrupts)
                self._lend(one)
            if one.end is None:
                return
            self._cells.popleft()
            self._finish(one, one.end)
            self._next()

    def _next(self) -> None:
        """Sends the next cell, with the variables as they are now."""
        while self._cells and self._cells[0].call is None:
            one = self._cells[0]
            try:
                with Interrupts() as interrupts:
                    self._depart(one, names_of(one.cell), interrupts)
            except BaseException as error:  # it cannot be sent; other cells are not affected
                self._cells.popleft()
                self._fail(one, error)

    # ---- its end ----

    def _finish(self, one: BackgroundCell, end: Message) -> None:
        home, before = self._home, dict(contextvars.copy_context())
        assert one.call is not None
        summary = end.body.pop("summary", None)
        if any(other.cell.number == one.cell.number for other in self._cells):
            summary = None  # a cell shows the summary of its last call
        returned, error = None, None
        after, home.displays_after = home.displays_after, []
        try:
            with Interrupts() as interrupts:
                returned = one.call.finish(end, interrupts)
        except BaseException as raised:
            error = raised
        interrupts.strike()  # it was not meant for this cell
        shown, home.displays_after = home.displays_after, after
        if not self._code_runs:
            self._carry(before)
        value = returned.shown if returned is not None else None
        self._show_end(one, value, error, shown, summary)
        one.job.ends(returned.value if returned is not None else None, error)
        calls = range(one.call.number, one.call.number + 1)
        summaries = [summary] if summary else []
        home.recent_outputs.note(
            Cell(one.cell.number, calls, one.cell.parent, value, described(error), list(shown), summaries)
        )
        home.pages.cell_ends()
        home.comms.cell_ends()

    def _show_end(
        self,
        one: BackgroundCell,
        value: tuple[dict[str, Any], dict[str, Any]] | None,
        error: BaseException | None,
        after: Iterable[tuple[str, str]] = (),
        summary: dict[str, Any] | None = None,
    ) -> None:
        """Shows the value or error and the summary below the background cell itself."""

        def show(kind: str, content: str) -> None:
            outputs.publish_past_capture(self._home.shell, outputs.plain(kind, content), one.cell.parent)

        if value is not None:
            data, metadata = value
            show("display_data", json.dumps({"data": data, "metadata": metadata, "transient": {}}))
        if (shown := described(error)) is not None:
            show("error", json.dumps(shown))
        for kind, content in after:
            show(kind, content)
        if summary is not None:
            show(summary["kind"], summary["content"])

    def _fail(self, one: BackgroundCell, error: BaseException) -> None:
        """Ends a cell that has changed nothing."""
        self._show_end(one, None, error)
        one.job.ends(None, error)

    def _carry(self, before: dict[ContextVar[Any], Any]) -> None:
        for variable, value in contextvars.copy_context().items():
            if before.get(variable, _MISSING) is not value:
                self._carried.append((variable, before.get(variable, _MISSING), value))

    def _code_ended(self) -> None:
        if not on_main_thread():
            return
        self._code_runs = False
        if self.is_empty:
            return
        with Interrupts():  # as in any cell, an interrupt that arrives after the cell's end does nothing
            self._handle_arrived()
            for one in self._cells:
                if one.call is None and one.cell.block is not None:  # its cell has gone on since it made the call
                    self._lend(one)

    def _handle_arrived(self) -> None:
        """Handles what has arrived."""
        with postponed():
            try:
                self._home.deferred.poll()
                self.advance()
                self._next()
            except LinkClosed:
                self._lose()

    def _lose(self) -> None:
        """The proxy has ended, and with it all background cells."""
        cells, self._cells = self._cells, deque()
        self._home.void()
        for one in cells:
            self._fail(one, proxy_gone())

    # ---- code of the notebook that begins ----

    def before(self, names: Callable[[], analysis.CellNames], objects: Iterable[object] = ()) -> None:
        """Returns when code with these names, and with the objects in `objects`, may run. Raises `NotYetHere`."""
        if not on_main_thread():
            self._wait_in_thread()
            return
        self._settle_context()
        if not self.is_empty:
            self._handle_arrived()
        if not self.is_empty:
            self._wait(lambda: self._conflict(names, objects))

    def cell_begins(self) -> None:
        """No results are applied until the cell has ended."""
        if on_main_thread():
            self._code_runs = True

    def before_all(self) -> None:
        """Returns when the results of every background cell have been applied. Raises `NotYetHere`."""
        if not on_main_thread():
            self._wait_in_thread()
            return
        self._settle_context()
        if not self.is_empty:
            self._wait(lambda: (self._cells[-1], "") if self._cells else None)

    def wait_for(self, job: Job, timeout: float | None) -> None:
        """Returns when the job has ended, or after `timeout` seconds. Raises `NotYetHere`."""
        mine = next((one for one in self._cells if one.job is job), None)
        if mine is not None:
            self._wait(lambda: (mine, "") if mine in self._cells else None, timeout)

    def cancel(self, job: Job) -> None:
        mine = next((one for one in self._cells if one.job is job), None)
        if mine is None:
            return
        if mine.call is not None:
            try:
                self._home.link.send("cancel", call=mine.call.number)
            except LinkClosed:
                self._lose()
            return
        self._cells.remove(mine)
        self._fail(mine, given_up(mine.cell.unit))

    def _settle_context(self) -> None:
        carried, self._carried = self._carried, []
        for variable, before, value in carried:
            if variable.get(_MISSING) is before:  # otherwise the notebook has set it since
                variable.set(value)

    def _conflict(
        self, names: Callable[[], analysis.CellNames], objects: Iterable[object]
    ) -> tuple[BackgroundCell, str] | None:
        """The cell to wait for, and what of it this code touches."""
        if self.is_empty:
            return None
        for one in self._cells:
            if one.call is not None and not one.sent:
                return one, ""
        try:
            uses = self._uses_of(names(), objects)
            reach = functools.cache(lambda: self._footprint(uses.reads, objects))
            for one in reversed(self._cells):
                if (what := one.lent.touched_by(uses, reach, self._home.namespace)) is not None:
                    return one, what
        except Exception:  # code that does not compile, or any error of the student's classes
            return self._cells[-1], " (Baton cannot tell what this cell uses)"
        return None

    def _progress(self) -> list[tuple[BackgroundCell, Call | None, bool]]:
        """What has become of the cells. Code that waits for one of them waits at least until this changes."""
        return [(one, one.call, one.sent) for one in self._cells]

    def _wait(self, conflict: Callable[[], tuple[BackgroundCell, str] | None], timeout: float | None = None) -> None:
        ran, self._code_runs = self._code_runs, False
        began, said = time.monotonic(), False
        try:
            with Interrupts() as interrupts:
                self._next()
                progress, found = self._progress(), conflict()
                while found is not None:
                    one, what = found
                    passed = time.monotonic() - began
                    if timeout is not None and passed >= timeout:
                        break
                    if not said and passed > SAID_AFTER_SECONDS:
                        said = True
                        sys.stderr.write(f"Waiting for {title(one)}{what}\n")
                        sys.stderr.flush()
                    tick = TICK_SECONDS if timeout is None else min(TICK_SECONDS, timeout - passed)
                    if self._receive(interrupts, tick) and progress != (now := self._progress()):
                        progress, found = now, conflict()
                    if interrupts.count and found is not None:
                        raise not_yet(one, what)
            interrupts.strike()
        finally:
            self._code_runs = ran

    def _wait_in_thread(self) -> None:
        """Waits on the thread of a subshell. Only the main thread receives and applies results."""
        for one in tuple(self._cells):
            one.job.wait_in_thread()

    def _receive(self, interrupts: Interrupts, seconds: float) -> bool:
        """Returns whether anything arrived."""
        try:
            message = self._home.link.receive(interrupts, seconds)
            if message is not None:
                self._home.overdue(message)
        except LinkClosed:
            self._lose()
            return True
        return message is not None


def on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def title(one: BackgroundCell) -> str:
    return f"{place(one.job)}, which runs in the background"


def place(job: Job) -> str:
    return f"In[{job.number}]" if job.unit == "cell" else f"a {job.unit} of In[{job.number}]"


def not_yet(one: BackgroundCell, what: str) -> BaseException:
    lines = [
        f"KeyboardInterrupt: {title(one)}{what}, has not ended yet",
        f"This cell was stopped; {place(one.job)} keeps running. '%gpu_jobs --cancel {one.cell.number}' cancels it",
    ]
    return errors.with_lines(NotYetHere(), lines)
