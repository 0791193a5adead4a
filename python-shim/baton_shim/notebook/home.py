"""The notebook's end of `%%gpu` cells: what it keeps between cells, and what it changes in IPython.

In: the body of a cell. Out: its value, or its exception. Between the two, `call.py` talks to the proxy.

**Invariant:** one call at a time; after any failure the next cell begins a new object table. Modules that only `%%gpu`
cells need are imported with the first cell, because the start of a kernel waits for all imports here.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import uuid
from html import escape
from typing import TYPE_CHECKING, Any

from baton_shim.base import compat
from baton_shim.base.closure import Uses
from baton_shim.base.compat import FIT
from baton_shim.base.here import by_reference, watch_images
from baton_shim.base.interrupts import postponed
from baton_shim.base.link import LinkClosed
from baton_shim.notebook import in_background, outputs
from baton_shim.notebook.debugging import wrap_debugger
from baton_shim.notebook.pages import Pages
from baton_shim.notebook.setters import Setters
from baton_shim.notebook.tracebacks import wrap_set_custom_exc, wrap_showtraceback
from baton_shim.surroundings import Surroundings
from baton_shim.surroundings.log_files import HomeLogFiles
from baton_shim.virtual import SWITCH
from baton_shim.virtual.hint import WATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from baton_shim.base.blocks import Work
    from baton_shim.base.comms import HomeComms
    from baton_shim.base.interrupts import Interrupts
    from baton_shim.base.job import Job
    from baton_shim.base.link import Link, Message
    from baton_shim.base.local_modules import LocalModules
    from baton_shim.notebook.again import RecentOutputs
    from baton_shim.notebook.attached import EarlierJobs
    from baton_shim.notebook.background import Background
    from baton_shim.notebook.cell import NotebookCell
    from baton_shim.notebook.deferred import Deferred
    from baton_shim.notebook.options import Options
    from baton_shim.notebook.results import Returned
    from baton_shim.notebook.saved_states import SavedStates
    from baton_shim.notebook.status import TransferStats
    from baton_shim.notebook.undo import UndoLog
    from baton_shim.state import Snapshot, Table


class Home:
    """The notebook's side of all its `%%gpu` cells. `connect` opens the connection to the proxy."""

    def __init__(
        self,
        shell: Any,
        connect: Callable[[], Link],
        modules: LocalModules,
        surroundings: Surroundings | None = None,
        published: outputs.Published | None = None,
    ) -> None:
        self.shell = shell
        self.modules = modules
        self.folder = working_folder()
        """The working directory with which the kernel started."""
        self._published = published
        self._connect = connect
        self._link: Link | None = None
        self.calls = 0
        self.session = 0
        """Counts the object tables, so that a stand-in can tell whether its session still exists."""
        self.shared: set[str] = set()
        """Names that have been sent to the session."""
        self.budget = budget()
        self.quiet = False
        """Whether all cells are quiet, even without `--quiet`."""
        self.cells = 0
        """The number of cells that have run in the present session."""
        self.where: tuple[str, int] | None = None
        """Host and process of the session, as it reported them."""
        self.last_job: tuple[int, str, str | None] | None = None
        """Of the last `%%gpu` cell: its number, the last digits of its job, and the worker."""
        self.gpu_time: str | None = None
        """What the last `%%gpu` cell that ran left of the budget."""
        self.background_uses = Uses()
        """Names that background work of the session uses."""
        self.transfer_stats: TransferStats | None = None
        self.unreleased: dict[int, list[Any]] = {}
        """By call: tables whose memory the proxy may still be reading. It must not be freed."""
        self.displays_after: list[tuple[str, str]] = []
        """What the session displayed after the cell, to be shown after its value or error."""
        self._progress = ""
        """The id of the display that shows the line of a `gpu.map`."""
        self._summaries: list[dict[str, Any]] = []
        self._in_cell = False
        self.surroundings = surroundings or Surroundings(shell.user_ns, modules, HomeLogFiles(shell.user_ns))
        self.setters = Setters()
        self._table: Table | None = None
        self.turn = threading.RLock()
        self.busy = False
        """Whether a `%%gpu` cell is running."""
        self.pages = Pages(self)
        self.background: Background | None = None
        """Set from the first background cell on."""
        self._shown: tuple[Any, dict[str, Any], dict[str, Any]] | None = None
        self._attach(shell)

    def _attach(self, shell: Any) -> None:
        """Attaches to a notebook kernel, which is connected from its start."""
        _ = self.link
        watch_images()
        FIT.attach(compat.SWITCHING, SWITCH.begin)
        FIT.attach(compat.HINTS, WATCH.begin, shell)
        FIT.attach(compat.PAGES, self.pages.listen)
        FIT.attach(compat.IN_BACKGROUND, in_background.listen, shell)
        FIT.attach(compat.TRACEBACKS, wrap_showtraceback, shell)
        FIT.attach(compat.HANDLERS, wrap_set_custom_exc, shell)
        FIT.attach(compat.DEBUGGER, wrap_debugger, shell)
        self._wrap_formatter()

    @property
    def link(self) -> Link:
        """The connection to the proxy."""
        if self._link is None:
            link = self._connect()
            link.hello()
            self._link = link
        return self._link

    @functools.cached_property
    def comms(self) -> HomeComms:
        from baton_shim.base.comms import HomeComms
        from baton_shim.notebook import widgets

        _ = self.deferred  # first, so that its wrappers of the kernel's handlers are inside those of the comms
        comms = HomeComms(self.shell.kernel)
        widgets.send_what_is_here()
        self.surroundings.add(comms)
        return comms

    @functools.cached_property
    def deferred(self) -> Deferred:
        from baton_shim.notebook.deferred import Deferred

        return Deferred(self)

    @functools.cached_property
    def undo_log(self) -> UndoLog:
        from baton_shim.notebook.undo import UndoLog

        return UndoLog(self)

    @functools.cached_property
    def saved_states(self) -> SavedStates:
        from baton_shim.notebook.saved_states import SavedStates

        return SavedStates(self)

    @functools.cached_property
    def ending(self) -> object:
        """Created with the first `%%gpu` cell."""
        from baton_shim.notebook.ending import Ending

        return FIT.attach(compat.ENDING, Ending, self)

    @functools.cached_property
    def earlier_jobs(self) -> EarlierJobs:
        from baton_shim.notebook.attached import EarlierJobs

        return EarlierJobs(self)

    @functools.cached_property
    def recent_outputs(self) -> RecentOutputs:
        from baton_shim.notebook.again import RecentOutputs

        return RecentOutputs()

    @contextlib.contextmanager
    def between_cells(self) -> Iterator[bool]:
        """Yields whether no `%%gpu` cell runs; then none begins inside the block. Never waits."""
        free = self.turn.acquire(blocking=False)
        try:
            yield free and not self.busy
        finally:
            if free:
                self.turn.release()

    def show_again(self, number: int | None) -> None:
        """For `%gpu_output`. `number`: that of `In[N]`; `None` means the last `%%gpu` cell."""
        from baton_shim.notebook.call import proxy_gone

        with self.turn:
            try:
                self.recent_outputs.show(self, number)
            except LinkClosed:
                raise proxy_gone() from None

    @property
    def namespace(self) -> dict[str, Any]:
        namespace: dict[str, Any] = self.shell.user_ns
        return namespace

    @property
    def table(self) -> Table:
        if self._table is None:
            from baton_shim.state import Table

            by_reference(self.shell)
            _ = self.ending
            self._table = Table(self.namespace, self.modules.apply)
            self.session += 1
            self.shared.clear()
            self.surroundings.restart()
            self.cells = 0
            self.where = None
            self.background_uses = Uses()
        return self._table

    def last_published(self) -> str | None:
        """The id of the notebook kernel's last message on iopub, after everything printed so far."""
        return None if self._published is None else self._published.last_id()

    def void(self, worker: str | None = None) -> None:
        """Drops the table, because the two ends may differ: the next message starts a new table and a new session."""
        with postponed():
            table, self._table = self._table, None
            if table is None:
                return
            session = f"the session on {worker}" if worker else "its session"
            lost = table.end_session(session)
            self.undo_log.table_ends(table)
        if lost:
            whose = f"The session on {worker}" if worker else "Your session"
            again = "the cell that made it" if len(lost) == 1 else "the cells that made them"
            sys.stderr.write(
                f"warning: {whose} ended. Lost with it: {', '.join(lost)}\n"
                f"Your other variables are safe. To have {'it' if len(lost) == 1 else 'them'} again, run {again}\n"
            )
            sys.stderr.flush()

    def has(self, table: Table) -> bool:
        """Whether it is the present table."""
        return self._table is table

    @property
    def warm(self) -> bool:
        """Whether a session holds the table's state. It may have ended since."""
        return self._table is not None and self._table.messages > 0

    def run_cell(self, body: str, options: Options) -> Any:
        """Runs a `%%gpu` cell and returns the value of its last line. Raises the cell's error."""
        from baton_shim.notebook.cell import NotebookCell

        returned = self._remotely(lambda: NotebookCell(self.shell, body), options)
        if returned is None or returned.result is None:
            return None
        self._shown = returned.result
        return returned.result[0]

    def run_in_background(self, what: str | Work, options: Options) -> Job:
        """Submits a cell, or the call of a function."""
        from baton_shim.notebook.background import Background
        from baton_shim.notebook.cell import BlockCell, NotebookCell

        WATCH.cell_leaves()
        if self.background is None:
            self.background = Background(self)
        cell = NotebookCell(self.shell, what) if isinstance(what, str) else BlockCell(self.shell, what)
        return self.background.submit(cell, options)

    def wait_for_background(self) -> None:
        """Returns when no cell runs in the background. Raises `NotYetHere` if the student interrupts."""
        if self.background is not None:
            self.background.before_all()

    def run_block(self, work: Work, options: Options) -> tuple[int, Any]:
        """How the block ended, and the value of its `return`."""
        from baton_shim.notebook.cell import BlockCell
        from baton_shim.state import errors

        try:
            returned = self._remotely(lambda: BlockCell(self.shell, work), options)
        except BaseException as error:
            errors.raise_here(error)
            raise
        assert returned is not None
        assert returned.ended is not None
        return returned.ended

    def _remotely(self, make: Callable[[], NotebookCell], options: Options) -> Returned | None:
        with self._taking_turn():
            self._remote_begins()
            first, result, raised = self.calls + 1, None, None
            try:
                result = self._run(make, options)
            except BaseException as error:
                raised = error
                raise
            finally:
                self.busy = False
                self._remote_ends(range(first, self.calls + 1), result, raised)
                del raised  # the error and its traceback would refer to each other
        return result

    @contextlib.contextmanager
    def _taking_turn(self) -> Iterator[None]:
        WATCH.cell_leaves()
        self.wait_for_background()
        while not self.turn.acquire(timeout=0.1):  # a subshell's cell holds it; the timeout admits interrupts
            pass
        try:
            if self.busy:
                raise RuntimeError("A %%gpu cell of this notebook is running, so another cannot start inside it")
            self.busy = True
            try:
                yield
            finally:
                self.busy = False
        finally:
            self.turn.release()

    @property
    def name(self) -> str:
        """The name of the notebook, for people."""
        return os.path.basename(os.environ.get("JPY_SESSION_NAME", "")) or "notebook"

    def map(
        self, function: Callable[..., Any], items: list[tuple[Any, ...]], chunk: int, most: int | None, options: Options
    ) -> list[Any]:
        """The results of the calls, in order."""
        from baton_shim.notebook.lanes import Mapped

        with self._taking_turn():
            self.deferred.fetch()  # the calls may use it
            return Mapped(self, options, most).run(function, items, chunk)

    def _remote_begins(self) -> None:
        from baton_shim.notebook.cell import cell_number

        self.comms.cell_begins()
        self.pages.cell_begins(cell_number(self.shell), self.shell.kernel.get_parent("shell"))

    def _remote_ends(self, calls: range, returned: Returned | None, error: BaseException | None) -> None:
        self._note(calls, returned, error)
        self.deferred.listen()
        self.comms.cell_ends()

    def _note(self, calls: range, returned: Returned | None, error: BaseException | None) -> None:
        """Records the cell's output, for pages that are not open now."""
        from baton_shim.notebook.again import Cell, described
        from baton_shim.notebook.cell import cell_number

        value = returned.shown if returned is not None else None
        request = self.shell.kernel.get_parent("shell")
        number, after = cell_number(self.shell), list(self.displays_after)
        self.recent_outputs.note(Cell(number, calls, request, value, described(error), after, list(self._summaries)))
        self.pages.cell_ends()

    def _run(self, make: Callable[[], NotebookCell], options: Options) -> Returned | None:
        from baton_shim.notebook.call import Call

        if self.modules.packages.has_newly_installed():
            self.void()  # objects that were kept remote for lack of the package can now be returned
        while True:
            with contextlib.suppress(LinkClosed):  # the call will notice it, too
                self.deferred.poll()
            if not self.warm or not options.returns or not self.deferred.due:
                self.deferred.fetch()  # a new table contains everything
            call = Call(self, make(), options)
            result = call.run()
            if not call.wants_deferred:
                return result

    def overdue(self, message: Message) -> None:
        """Handles a message of an earlier call, or of a background cell."""
        if message.name == "output_given":
            self.recent_outputs.awaited -= 1
            return
        if self.background is not None and self.background.takes(message):
            return
        call = message.body.get("call", 0)
        if message.name in ("deferred_state", "deferred_lost"):
            self.deferred.take(message)
            return
        if message.name == "session_ended" and not self.busy:
            self.void(message.body["worker"])
        if message.name == "released":
            self.released(call)
        elif message.name in ("finished", "failed"):
            self.unreleased.pop(call, None)
            if message.body.get("delta") is not None:
                self.link.send("applied", call=call, error="The notebook no longer waits for this cell")
        message.close()

    def released(self, call: int) -> None:
        for earlier in [number for number in self.unreleased if number < call]:
            del self.unreleased[earlier]  # the proxy reads for one call at a time
        tables = self.unreleased.get(call, [])
        if tables:
            tables.pop(0).release()

    def forget_results(self, cells: Iterable[int]) -> None:
        """Removes the results of cells that were rolled back."""
        # IPython stops updating `_` if these three hold different objects under it.
        holders = (self.namespace, self.shell.user_ns_hidden, vars(self.shell.displayhook))
        for number in cells:
            found = self.namespace.get("_oh", {}).pop(number, self)
            for names in holders:
                names.pop(f"_{number}", None)
                names.update((name, "") for name in ("_", "__", "___") if names.get(name) is found)

    def _wrap_formatter(self) -> None:
        """Shows a returned value as the session formatted it, because its libraries and settings are there."""
        formatter = self.shell.display_formatter
        format_here = formatter.format

        @functools.wraps(format_here)
        def format(value: Any, *arguments: Any, **options: Any) -> Any:  # noqa: A001
            shown, self._shown = self._shown, None
            if shown is not None and shown[0] is value:
                return shown[1], shown[2]
            return format_here(value, *arguments, **options)

        formatter.format = format
        self.shell.events.register("post_execute", self._show_displays_after)
        self.shell.events.register("post_run_cell", self._cell_ended)
        self.shell.events.register("pre_run_cell", self._cell_begins)

    def wire(self, snapshot: Snapshot) -> dict[str, Any]:
        """The snapshot as it is sent to the proxy, which reads this kernel's memory."""
        return snapshot.as_wire()

    def show(self, output: dict[str, Any]) -> None:
        """Shows output of the session that something here captures."""
        outputs.publish(self.shell, output)

    def show_progress(self, text: str, *, first: bool, last: bool) -> None:
        """Shows one line, which later ones replace until the `last`."""
        if first:
            self._progress = f"baton-{uuid.uuid4().hex}"
        html = f'<small style="opacity:0.7">{escape(text)}</small>'
        content = {
            "data": {"text/plain": text, "text/html": html},
            "metadata": {},
            "transient": {"display_id": self._progress},
        }
        kind = "display_data" if first else "update_display_data"
        line = outputs.plain(kind, json.dumps(content))
        outputs.publish_past_capture(self.shell, line)

    def ask(self, question: outputs.Question, interrupts: Interrupts) -> str | None:
        """The student's answer; None after an interrupt or when the cell no longer asks."""
        return outputs.ask(self.shell, question, interrupts)

    def show_status(self, line: dict[str, Any]) -> None:
        """Nothing to do: in a notebook, the proxy shows the status line to the clients."""

    def summarise(self, line: dict[str, Any], *, of_block: bool) -> None:
        """Shows the line that says where a cell ran, below all other output of the cell."""
        if of_block:
            self._summaries.clear()  # a cell shows only the line of its last block
        self._summaries.append(line)
        if not self._in_cell:  # in a callback of a widget
            self._show_summaries()

    def _show_summaries(self) -> None:
        lines, self._summaries = self._summaries, []
        if lines:
            sys.stdout.flush()
            sys.stderr.flush()
        for line in lines:
            outputs.publish_past_capture(self.shell, line)

    def _cell_begins(self, cell: Any) -> None:
        self._in_cell = True
        self.surroundings.patches.expect(cell.raw_cell or "", self.namespace)

    def _show_displays_after(self) -> None:
        shown, self.displays_after = self.displays_after, []
        for kind, content in shown:
            outputs.publish(self.shell, {"kind": kind, "content": content})

    def _cell_ended(self, *result: object) -> None:
        self._in_cell, self._shown = False, None
        self._show_summaries()


def working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return ""


def budget() -> tuple[int, ...]:
    """A `state.Budget`: how much is returned with a cell instead of being deferred. The tests defer everything."""
    text = os.environ.pop("BATON_CELL_BYTES", "")
    return (int(text), int(text)) if text.isdigit() else ()
