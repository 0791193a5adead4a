"""One `%%gpu` cell: find its names, send a snapshot, wait and answer requests, apply its changes.

Interrupts are held from the first message on. The first one cancels the cell; the state that it has reached is still
applied. After a second one, or if the proxy does not answer, the call ends at once. Applying is never interrupted.

**Invariant:** `run` ends with the value, the cell's own exception, KeyboardInterrupt or a GpuServiceError. After a
GpuServiceError the notebook's variables are as they were.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from baton_shim.base.interrupts import Interrupts
from baton_shim.base.link import LinkClosed, Message
from baton_shim.notebook import analysis, results
from baton_shim.notebook.debugging import warn_of_breakpoints
from baton_shim.notebook.departure import Departure, depart, supply
from baton_shim.notebook.outputs import Question
from baton_shim.state import errors
from baton_shim.state.errors import GpuServiceError, StateRefused
from baton_shim.surroundings import warn

if TYPE_CHECKING:
    from baton_shim.base.undoing import OnUndo
    from baton_shim.notebook.cell import NotebookCell
    from baton_shim.notebook.home import Home
    from baton_shim.notebook.options import Options

# Before it answers that a call was given up or not applied, the proxy restores files.
GIVE_UP_SECONDS = 2.0
AFTER_QUESTION = frozenset(("finished", "failed", "input_wanted", "names_wanted"))
"""What a session sends, or what is sent for it, only while it waits for no answer."""
# A signal that another thread received is noticed after at most this time.
TICK_SECONDS = 1.0


class Call:
    """One attempt to run a cell in the session; a cell may need several."""

    def __init__(self, home: Home, cell: NotebookCell, options: Options) -> None:
        self.home = home
        self.cell = cell
        self.options = options
        home.calls += 1
        self.number = home.calls
        self.departure: Departure | None = None
        self.refusal: GpuServiceError | None = None
        self.stopping = False
        """Whether the proxy was asked to stop the cell. It may take any time to return the changes."""
        self.wants_deferred = False
        """Whether the call must be repeated once all deferred state of earlier cells has arrived."""

    def run(self) -> results.Returned | None:
        """Runs the cell and applies its changes. Returns None for an empty cell, or if the call must be repeated."""
        names = names_of(self.cell)
        if names.empty and self.cell.block is None:
            return None
        warn_of_breakpoints(self.home.shell, self.cell.content.get("code", ""))
        with Interrupts() as interrupts:
            try:
                self.send(names, interrupts)
                end = self._wait(interrupts)
                if end is not None:
                    return self.finish(end, interrupts)
            except LinkClosed:
                self.home.void()
                raise proxy_gone() from None
            self.home.void()
            raise given_up(self.cell.unit)

    def send(self, names: analysis.CellNames, interrupts: Interrupts) -> None:
        """Sends the cell. After this, messages arrive until one ends the call.

        Raises `LinkClosed`, or the reason that the cell cannot be sent.
        """
        try:
            with interrupts.raising():
                departure = self.departure = depart(self.home, self.cell, names, self.options)
        except KeyboardInterrupt:  # during a long snapshot: what the table numbered is unknown
            self.home.void()
            raise given_up(self.cell.unit) from None
        self.home.unreleased[self.number] = [departure.table]
        self.home.link.send("run", call=self.number, **self._request(departure))

    def _request(self, departure: Departure) -> dict[str, Any]:
        background = self.options.background is not None
        # Its output is not captured and its questions are not answered, because the cell that started it has ended.
        alone = {"captured": False, "allow_stdin": False} if background else {}
        return {
            **self.cell.request(),
            **alone,
            "after": self.home.last_published(),
            "kind": "background" if background else self.cell.unit,
            "quiet": self.options.quiet,
            "timeout_ms": self.options.timeout_ms,
            "gpu_memory_bytes": self.options.gpu_memory_bytes,
            "gpu": self.options.gpu,
            "environment": self.options.environment,
            "priority": self.options.priority,
            "state": self.home.wire(departure.snapshot),
        }

    def _wait(self, interrupts: Interrupts) -> Message | None:
        """The message that ends the call; None if the student stopped waiting."""
        while True:
            if interrupts.count and not self.stopping:
                self.cancel()
            if interrupts.count > 1:
                self._give_up()
                return None
            message = self.home.link.receive(interrupts, TICK_SECONDS)
            if message is None:
                continue
            if message.body.get("call") != self.number:
                self._on_message_of_earlier_call(message)
            elif message.name in ("finished", "failed"):
                return message
            else:
                self._meanwhile_or_give_up(message, interrupts)

    def _meanwhile_or_give_up(self, message: Message, interrupts: Interrupts) -> None:
        try:
            self.meanwhile(message, interrupts)
        except LinkClosed:
            raise
        except BaseException:  # raised while showing output: a closed pipe, the student's own stream
            self._give_up()
            self.home.void()
            raise

    def cancel(self) -> None:
        """Asks the proxy to interrupt the cell, whose changes are then still returned."""
        self._stop("cancel")

    def _stop(self, how: str) -> None:
        self.home.link.send(how, call=self.number)
        self.stopping = True

    def _give_up(self) -> None:
        """Waits until files already written are restored, before the student reads that nothing has changed."""
        self.home.link.send("give_up", call=self.number)
        until = time.monotonic() + GIVE_UP_SECONDS
        while (left := until - time.monotonic()) > 0:
            message = self.home.link.receive(timeout=left)
            if message is None:
                return
            ended = message.body.get("call") == self.number and message.name in ("finished", "failed")
            has_changes = message.body.get("delta") is not None
            self.home.overdue(message)
            if ended and not has_changes:
                return

    def _on_message_of_earlier_call(self, message: Message) -> None:
        """Handles a message of an earlier call. Its deferred state is sent again if this call fails."""
        if message.name == "deferred_state":
            message.close()
        elif message.name == "deferred_lost":
            self.home.deferred.keep(message)
        else:
            self.home.overdue(message)

    def meanwhile(self, message: Message, interrupts: Interrupts) -> None:
        """Handles a message that arrives while the cell waits or runs."""
        body = message.body
        if message.name == "released":
            self.home.released(self.number)
        elif message.name == "state_wanted":
            self._state_wanted()
        elif message.name == "names_wanted":
            self._names_wanted(body["names"], interrupts)
        elif message.name == "publish":
            self.home.show(body["output"])
        elif message.name == "status":
            self.home.show_status(body["line"])
        elif message.name == "input_wanted":
            self._ask(body["prompt"], body["password"], interrupts)

    def _ask(self, prompt: str, password: bool, interrupts: Interrupts) -> None:
        """Asks the student, as long as the cell waits for the answer."""
        is_over = partial(self.home.link.look_ahead, self._ends_question)
        value = self.home.ask(Question(prompt, password, is_over), interrupts)
        # An interrupt cancels the cell, which ends its question, too. With an answer, it could strike later.
        if value is not None:
            self.home.link.send("input", call=self.number, value=value)

    def _ends_question(self, message: Message) -> bool:
        return message.body.get("call") == self.number and message.name in AFTER_QUESTION

    def _state_wanted(self) -> None:
        """No session holds what the table refers to, so everything is sent again in a new table."""
        self.home.void()
        due = self.home.deferred.due  # the new table needs what has not arrived
        if due and self.options.background is None:
            self.wants_deferred = True
            self._stop("withdraw")
            return
        try:
            if due:
                raise results_missing(self.cell.unit, self.home.deferred.cells())
            departure = self.departure = depart(self.home, self.cell, names_of(self.cell), self.options)
        except GpuServiceError as refusal:
            self.refusal = refusal
            self.home.void()
            self.cancel()
            return
        self.home.unreleased[self.number].append(departure.table)
        self.home.link.send("state", call=self.number, state=self.home.wire(departure.snapshot))

    def _names_wanted(self, names: list[str], interrupts: Interrupts) -> None:
        """The running cell has looked up names that it was not given, and waits for them."""
        assert self.departure is not None
        try:
            with interrupts.raising_the_second():
                snapshot = supply(self.home, self.departure, names, self.options)
        except KeyboardInterrupt:  # the cell's wait ends too; what the table numbered is unknown
            self.cancel()
            return
        except GpuServiceError as refusal:
            self.refusal = refusal
            self.cancel()
            return
        if interrupts.count and not self.stopping:
            self.cancel()  # before the cell continues
        self.home.unreleased[self.number].append(self.departure.table)
        self.home.link.send("names", call=self.number, state=self.home.wire(snapshot))

    def finish(self, end: Message, interrupts: Interrupts) -> results.Returned | None:
        """Applies the changes in the message that ends the call. Raises the cell's error, or why it has no result."""
        self.home.unreleased.pop(self.number, None)
        if ran := end.body.get("ran"):
            self.home.last_job = self.cell.number, ran["job"], ran.get("worker")
            self.home.gpu_time = ran.get("gpu_time") or self.home.gpu_time
        if self.wants_deferred:
            self.home.overdue(end)
            if interrupts.count:
                raise given_up(self.cell.unit)
            return None
        if end.body.get("summary"):
            self.home.summarise(end.body["summary"], of_block=self.cell.block is not None)
        if end.name == "failed" or self.refusal is not None:
            self._keep_or_void(end)
            self.home.overdue(end)
            raise self._failure(end.body["outcome"], end.body["error"])
        returned = self._apply(end)
        error = end.body["error"]
        if returned is None and error is None and end.body["outcome"] == "cancelled":
            raise given_up(self.cell.unit)
        if error is not None or end.body["outcome"] != "ok":
            raise results.exception_of(end.body["outcome"], error, returned, self.home)
        # As in any cell, an interrupt that arrives after the cell's end does nothing.
        return returned

    def _apply(self, end: Message) -> results.Returned | None:
        if end.body["delta"] is None:
            self._keep_or_void(end)
            return None
        table = self.home.table
        troubles: list[str] = []

        def apply_extra(extra: dict[str, Any], undo: OnUndo) -> None:
            around = self.home.surroundings
            if self.options.background is not None:
                extra = around.without_changed_here(extra)
            troubles[:] = around.apply(extra, undo)

        try:
            assert end.file_descriptor is not None
            extra: Any = table.apply(end.body["delta"], end.file_descriptor, apply_extra=apply_extra)
        except BaseException as error:  # any error of the student's own classes while they are rebuilt
            self.home.void()
            text = f"{type(error).__name__}: {errors.short(error)}"
            notify_not_applied(self.home, self.number, text)
            raise GpuServiceError(
                f"The cell ran, but its changes could not be returned ({text})",
                "run it again; if it fails again, move the object that the message names into its own cell",
            ) from error
        finally:
            end.close()
        returns = self.options.returns
        try:
            self.home.link.send("applied", call=self.number, error=None)
        except LinkClosed:  # the cell has its result; the next call notices that the proxy has ended
            returns = False
        if self.home.transfer_stats is not None:
            self.home.transfer_stats.returned(end.body["delta"], extra["names"])
        self.home.deferred.applied(table, self.number, self.cell.number)
        self.home.undo_log.note(self.cell, table)
        for line in [*troubles, *table.not_rebuilt, *table.take_staying(), *extra["left"]]:
            warn(line)
        returned = results.take_extra(self.home, self.cell, extra)
        if not returns:
            self.home.void()  # the session's state differs from the notebook's now
        return returned

    def _keep_or_void(self, end: Message) -> None:
        """The cell returns nothing. If it never reached a session, the table is as it was before the cell."""
        sent = self.departure if end.body.get("table_kept") else None
        if sent is None or not self.home.has(sent.table) or not sent.take_back():
            self.home.void()

    def _failure(self, outcome: str, error: dict[str, Any]) -> BaseException:
        if self.refusal is not None:
            return self.refusal
        base = StateRefused if outcome == "refused" else GpuServiceError
        kind: type[GpuServiceError] = errors.service_error(error["name"], base)
        return kind(error["value"], error["hint"])


def names_of(cell: NotebookCell) -> analysis.CellNames:
    """The names of the cell. Raises the error that IPython shows for a cell that does not compile."""
    try:
        return cell.names()
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise cell.not_compiled(error) from None  # before the cell queues for a GPU


def notify_not_applied(home: Home, call: int, why: str) -> None:
    """Returns when the files are as they were, too, so that this is true when the student reads it."""
    until = time.monotonic() + GIVE_UP_SECONDS
    with contextlib.suppress(LinkClosed):  # the next call notices it
        home.link.send("applied", call=call, error=why)
        while (left := until - time.monotonic()) > 0:
            message = home.link.receive(timeout=left)
            if message is None:
                return
            is_of_call = message.body.get("call") == call
            if is_of_call and message.name == "publish":
                home.show(message.body["output"])
            home.overdue(message)
            if is_of_call and message.name == "undone":
                return


def proxy_gone() -> GpuServiceError:
    """The error of every request once the proxy has ended."""
    what = "Baton's proxy, which connects this kernel with the GPU machines, has ended"
    return GpuServiceError(what, "restart the kernel")


def results_missing(unit: str, cells: str) -> GpuServiceError:
    what = f"This {unit} did not start: its session has ended, and results of {cells} have not arrived from it"
    return GpuServiceError(what, f"run the {unit} again")


def given_up(unit: str) -> BaseException:
    """The KeyboardInterrupt of a cell, block or call that was stopped before its changes were returned."""
    lines = [f"KeyboardInterrupt: the {unit} was interrupted before its changes could be returned", errors.safe(unit)]
    return errors.with_lines(KeyboardInterrupt(), lines)
