"""`gpu.map`: calls that run in several sessions at once, each a *lane* with a helper process and an object table.

In: a function, and the arguments of each call. Out: the results in the order of the calls, or the first error of a
call. If the service fails, the calls that run still end, and the error carries all results that have arrived.

A call is given a copy of what it uses, as it was when `gpu.map` was called, and returns only its result
(`surroundings/mapped.py`). A lane is added only while the calls of all others run, so the broker decides how many lanes
there are: if it allows a person one running cell at a time, there are two.

**Invariant:** the notebook's own object table and session are not involved. Whatever happens, the variables stay as
they are, and no lane outlives the call.
"""

from __future__ import annotations

import functools
import json
import select
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from baton_shim.base.blocks import Work, text_of_call
from baton_shim.base.both import BothCells
from baton_shim.base.interrupts import Interrupts
from baton_shim.base.link import LinkClosed
from baton_shim.base.local_modules import LocalModules
from baton_shim.base.sources import sources
from baton_shim.notebook import analysis
from baton_shim.notebook.call import Call, names_of, proxy_gone
from baton_shim.notebook.cell import BlockCell
from baton_shim.notebook.departure import refusal
from baton_shim.notebook.helper import Helper
from baton_shim.notebook.home import Home
from baton_shim.notebook.outputs import Question
from baton_shim.notebook.progress import Progress
from baton_shim.notebook.undo import NoUndo
from baton_shim.state import Table, errors
from baton_shim.state.culprits import culprits, refusal_of
from baton_shim.state.errors import GpuServiceError, StateRefused
from baton_shim.state.packed import Packed, Unpacked, packed
from baton_shim.state.refusal import Refused, StandIn, where_it_is
from baton_shim.surroundings import Difference
from baton_shim.surroundings.mapped import ARGUMENTS, FUNCTION, LEFT, RESULT, run_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from baton_shim.base.link import Link, Message
    from baton_shim.base.undoing import OnUndo
    from baton_shim.notebook.options import Options
    from baton_shim.notebook.results import Returned
    from baton_shim.state import Snapshot

MOST_LANES = 16
"""The default for `max_workers`."""
TICK_SECONDS = 1.0
SETTLED_SECONDS = 0.1
"""A call that has run for this long is unlikely to be about to end."""

Arguments = tuple[Any, ...]


class LaneModules(LocalModules):
    """The notebook's modules, which are sent to a lane's session. Modules that the session loads are ignored."""

    def __init__(self, modules: LocalModules) -> None:
        super().__init__(modules.packages.copy())
        self.loaded = modules.loaded
        self.both = BothCells(modules.both.cells)

    def apply(self, news: bytes, undo: OnUndo) -> None:
        pass


class LaneSurroundings:
    """What is sent with a lane's own messages. Everything else is in the snapshots that they carry."""

    def __init__(self, home: Home) -> None:
        self.modules = LaneModules(home.modules)
        self.patches = self
        self.settings = home.surroundings.settings

    def read_new(self, cells: list[str], namespace: object) -> None:
        pass

    def named(self) -> str:
        return ""

    def look(self) -> Difference:
        return Difference(self.modules.look(), {})

    def commit(self, difference: Difference, undo: OnUndo) -> None:
        self.modules.commit(undo)

    def apply(self, said: object, undo: OnUndo) -> list[str]:
        return []

    def restart(self) -> None:
        self.modules.restart()


class NothingDeferred:
    """Calls of a lane leave no deferred state."""

    due = False

    def applied(self, *of: object) -> None:
        pass

    def keep(self, message: Message) -> None:
        message.close()

    take = keep


class LaneHome(Home):
    """A lane's end of its cells. It has no names, and applies nothing in the notebook."""

    ending = None

    def __init__(self, home: Home, connect: Callable[[], Link]) -> None:
        self._notebook = home
        self._names: dict[str, Any] = {}
        self.status = ""
        """The status line of its call."""
        surroundings: Any = LaneSurroundings(home)
        super().__init__(home.shell, connect, surroundings.modules, surroundings)

    def _attach(self, shell: Any) -> None:
        """Attaches to nothing: a lane is not a kernel."""

    @functools.cached_property
    def undo_log(self) -> Any:
        return NoUndo()

    @functools.cached_property
    def deferred(self) -> Any:
        return NothingDeferred()

    @property
    def namespace(self) -> dict[str, Any]:
        return self._names

    def wire(self, snapshot: Snapshot) -> dict[str, Any]:
        """Sends bytes instead of addresses, because a system may let only one process read this one's memory."""
        return {**snapshot.as_wire(), "stream": snapshot.stream.in_frame()}

    def show(self, output: dict[str, Any]) -> None:
        self._notebook.show(output)

    def ask(self, question: Question, interrupts: Interrupts) -> str | None:
        return self._notebook.ask(question, interrupts)

    def show_displays_after(self) -> None:
        """Shows what the session displays after a cell, such as figures."""
        shown, self.displays_after = self.displays_after, []
        for kind, content in shown:
            self.show({"kind": kind, "content": content})

    def show_status(self, line: dict[str, Any]) -> None:
        """Keeps the line for the single line of all lanes."""
        self.status = str(json.loads(line["content"])["data"]["text/plain"])

    def summarise(self, line: dict[str, Any], *, of_block: bool) -> None:
        pass


class Lane:
    """A helper process with an object table, which runs one call after another."""

    def __init__(self, home: Home, options: Options) -> None:
        self._helper: Helper | None = None
        self._notebook, self._options = home, options
        self._home = LaneHome(home, self._connect)
        self.call: Call | None = None
        self.first = 0
        """The number of its first item."""
        self._runs_since: float | None = None
        self.is_gone = False
        """Whether its helper process has ended."""

    def _connect(self) -> Link:
        self._helper = Helper(self._notebook.folder, self._notebook.name, kind="map")
        return self._helper.link

    def begin(self, work: Work, first: int, interrupts: Interrupts) -> None:
        cell = BlockCell(self._home.shell, work)
        self.call, self.first, self._runs_since = Call(self._home, cell, self._options), first, None
        self.call.send(names_of(cell), interrupts)

    @property
    def has_started(self) -> bool:
        return self.call is not None and self.may_have_run

    @property
    def may_have_run(self) -> bool:
        """Whether its last call has left the queue."""
        return self._runs_since is not None

    @property
    def waits_for(self) -> str:
        return self._home.status

    @property
    def runs(self) -> bool:
        """Whether the call has left the queue, and not just now."""
        return self._runs_since is not None and time.monotonic() - self._runs_since >= SETTLED_SECONDS

    def fileno(self) -> int:
        return self._home.link.fileno()

    def handle_arrived(self, interrupts: Interrupts) -> Returned | None:
        """Handles what has arrived; returns the call's result if it has ended. Raises its error."""
        try:
            while (message := self._home.link.receive(timeout=0)) is not None:
                if (returned := self._take(message, interrupts)) is not None:
                    return returned
        except LinkClosed:
            self.call, self.is_gone = None, True
            raise proxy_gone() from None
        return None

    def _take(self, message: Message, interrupts: Interrupts) -> Returned | None:
        if self.call is None or message.body.get("call") != self.call.number:
            self._home.overdue(message)
        elif message.name in ("finished", "failed"):
            call, self.call = self.call, None
            try:
                return call.finish(message, interrupts)
            finally:
                self._home.show_displays_after()
        elif message.name == "started":
            self._runs_since = time.monotonic()
        else:
            self.call.meanwhile(message, interrupts)
        return None

    def hang_up(self) -> None:
        """Closes the connection, which cancels its call."""
        if self._helper is not None:
            self._helper.link.hang_up()

    def close(self) -> None:
        if self._helper is not None:
            self._helper.close()


class Mapped:
    """The calls of one `gpu.map`."""

    def __init__(self, home: Home, options: Options, most: int | None) -> None:
        self._home, self._options, self._most = home, options, most or MOST_LANES
        self._lanes: list[Lane] = []
        self._results: dict[int, Any] = {}
        self._repeated: set[int] = set()
        """First items of calls that did not start and were made again."""
        self._failure: GpuServiceError | None = None
        """The service's first failure. No further calls begin after it."""

    def run(self, function: Callable[..., Any], items: Sequence[Arguments], chunk: int) -> list[Any]:
        """Raises the first error; afterwards nothing of this `gpu.map` is running."""
        self._waiting = waiting = deque(range(0, len(items), chunk))
        self._progress = Progress(self._home, len(items), self._options)
        text = text_of_call(function)
        try:
            with Interrupts() as interrupts:
                with interrupts.raising():
                    shared = self._shared(function)
                while self._goes_on():
                    while waiting and not self._failure and (lane := self._free()) is not None:
                        first = waiting.popleft()
                        with interrupts.raising():
                            some = self._packed(ARGUMENTS, list(items[first : first + chunk]))
                        work = Work(text, None, run_calls, (shared, some, first), {}, "call")
                        lane.begin(work, first, interrupts)
                    if not self._handle_arrived(interrupts):
                        self._wait(interrupts, SETTLED_SECONDS if waiting else TICK_SECONDS)
                    if interrupts.count:
                        raise interrupted()
        finally:
            self._progress.end()
            for lane in self._lanes:
                lane.hang_up()
            for lane in self._lanes:
                lane.close()
        if self._failure is not None:
            raise self._incomplete(self._failure, len(items))
        return [self._results[number] for number in range(len(items))]

    def _goes_on(self) -> bool:
        if self._failure is not None:
            return any(lane.has_started for lane in self._lanes)
        return bool(self._waiting) or any(lane.call for lane in self._lanes)

    def _free(self) -> Lane | None:
        """A lane without a call; a new lane only if the calls of all others run."""
        for lane in self._lanes:
            if lane.call is None:
                return lane
        if len(self._lanes) >= self._most or not all(lane.runs for lane in self._lanes):
            return None
        self._lanes.append(Lane(self._home, self._options))
        return self._lanes[-1]

    def _wait(self, interrupts: Interrupts, seconds: float) -> None:
        """Waits for a message to a lane, or an interrupt."""
        lines = [lane.waits_for for lane in self._lanes if lane.call is not None and not lane.has_started]
        self._progress.look(sum(lane.has_started for lane in self._lanes), list(filter(None, lines)))
        poll = select.poll()
        for place in (interrupts.wake, *(lane.fileno() for lane in self._lanes if lane.call is not None)):
            poll.register(place, select.POLLIN)
        if interrupts.wake in (place for place, _ in poll.poll(seconds * 1000)):
            interrupts.quiet()

    def _handle_arrived(self, interrupts: Interrupts) -> bool:
        """Handles messages that have arrived, including buffered ones that `poll` does not report.

        Returns whether a lane has become free.
        """
        failed: dict[int, Exception] = {}
        ended = False
        for lane in [lane for lane in self._lanes if lane.call is not None]:
            try:
                returned = lane.handle_arrived(interrupts)
            except Exception as error:
                if isinstance(error, GpuServiceError) and not isinstance(error, StateRefused):
                    self._on_failure(lane, error)
                    ended = True
                    continue
                errors.raise_here(error)
                failed[lane.first] = error
                continue
            if returned is not None:
                assert returned.ended is not None
                self._arrive(lane.first, returned.ended[1])
                ended = True
        if failed:
            raise failed[min(failed)]
        return ended

    def _on_failure(self, lane: Lane, error: GpuServiceError) -> None:
        """A call that has not started is made once more."""
        if lane.is_gone:
            self._lanes.remove(lane)
            lane.close()
        if lane.may_have_run or lane.first in self._repeated:
            self._failure = self._failure or error
        else:
            self._repeated.add(lane.first)
            self._waiting.appendleft(lane.first)

    def _incomplete(self, error: GpuServiceError, count: int) -> GpuServiceError:
        missing = [number for number in range(count) if number not in self._results]
        error.results = dict(self._results)
        error.message += (
            f". {len(self._results)} of {count} results have arrived; the error's attribute 'results' has them by the "
            f"number of their item. Missing: {ranges(missing)}"
        )
        return error

    def _arrive(self, first: int, results: list[Packed]) -> None:
        self._progress.done += len(results)
        for number, result in enumerate(results, first):
            with Unpacked(result) as message:
                self._results[number] = message.apply(Table(self._home.namespace, home=True))[RESULT]

    # ---- what is sent

    def _shared(self, function: Callable[..., Any]) -> Packed:
        """The function with the variables that it may use. If one cannot be sent, a call that uses it reports that."""
        home = self._home
        namespace = home.namespace
        visible = analysis.visible_names(namespace, home.shell.user_ns_hidden)
        needed = analysis.needed(analysis.CellNames(), namespace, visible, [function])
        names = set(needed.names | needed.wished)
        cells = home.shell.history_manager.input_hist_raw
        extra = {
            FUNCTION: function,
            "sources": sources(home.shell, needed.files),
            LEFT: dict[str, StandIn](),
            **home.surroundings.whole(cells),
        }
        while True:
            try:
                return packed(Table(namespace).snapshot(sorted(names), certain=frozenset(), extra=extra))
            except Exception as error:  # `Refused`, or any error of a library's pickling
                values = {name: namespace[name] for name in names}
                found = culprits(lambda: Table(namespace), {FUNCTION: function} | values, error)
                if not names.intersection(found):
                    raise refusal(found.get(FUNCTION, error)) from None
                names.difference_update(found)
                extra[LEFT] |= {name: StandIn(why_left_here(one), one.hint) for name, one in found.items()}

    def _packed(self, name: str, value: object) -> Packed:
        table = Table(self._home.namespace)
        try:
            snapshot = table.snapshot([], extra={name: value}, places=[("items", value)])
        except Exception as error:  # any error of a library's pickling
            raise refusal(refusal_of("items", error)) from None
        if table.left_behind:
            raise StateRefused(f"An item of gpu.map {table.left_behind[0][1]} and cannot move to the GPU machine")
        return packed(snapshot)


def why_left_here(refused: Refused) -> str:
    return f"'{refused.path}' {refused.reason} and {where_it_is(home=True)}"


def ranges(numbers: Sequence[int]) -> str:
    """Such as `0, 3 to 7, 9`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join(" to ".join(map(str, run)) for run in runs)


def interrupted() -> BaseException:
    lines = ["KeyboardInterrupt: gpu.map was interrupted, and its calls are cancelled", errors.safe("call")]
    return errors.with_lines(KeyboardInterrupt(), lines)
