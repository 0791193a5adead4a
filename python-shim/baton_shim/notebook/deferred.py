"""Deferred state of `%%gpu` cells: it arrives after the cell, and before any code of the notebook runs.

An ordinary cell, a widget's callback and a front-end's expressions wait for all of it, because their text does not show
everything that they reach through attributes, closures or views of the same memory. The next `%%gpu` cell does not
wait.

It arrives even if a later `%%gpu` cell is stopped, fails or ends the session. Until all of it has arrived, everything
that the cells changed can be rolled back. That happens if their worker is lost first. Then the next cell of any kind
reports it, once, and runs with the restored values.

**Invariant:** the student's code never sees memory whose bytes have not arrived.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from IPython.core.error import InputRejected

from baton_shim.base.background_work import has_background_work
from baton_shim.base.interrupts import Interrupts, postponed
from baton_shim.base.link import LinkClosed, Message
from baton_shim.base.source import GPU_LINE
from baton_shim.notebook import analysis
from baton_shim.notebook.status import listed, size
from baton_shim.state import errors

if TYPE_CHECKING:
    from baton_shim.notebook.home import Home
    from baton_shim.state import Table

TICK_SECONDS = 1.0
SAID_AFTER_SECONDS = 1.0
"""Shorter waits are not reported."""
MOST_KEPT_BYTES = 64 << 20
"""A limit for the memory kept to roll cells back; above it, a cell returns everything at once."""
COMMS = ("comm_open", "comm_msg", "comm_close")
OWN_MAGICS = ("gpu_status", "gpu_output", "gpu_reset", "gpu_config", "gpu_undo", "gpu_jobs")


class NotYetHere(KeyboardInterrupt, InputRejected):  # type: ignore[misc]
    """The student interrupted the wait."""


NotYetHere.__name__ = NotYetHere.__qualname__ = "KeyboardInterrupt"


class Deferred:
    """The notebook's end of deferred state: what is still to arrive, and who waits for it."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._table: Table | None = None
        self._call = 0
        self._cells: list[int] = []
        """The execution counts of the cells whose bytes have not arrived."""
        self.loss: list[str] = []
        """What the next cell reports about cells that were rolled back."""
        self._later: Message | None = None
        """A message that arrived during a call that needs the missing state, or when this machine had no room."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wrap_shell(home.shell)

    @property
    def due(self) -> bool:
        """Whether something has not arrived yet."""
        return self._table is not None

    def bytes(self) -> int:
        """How much has not arrived yet."""
        return self._table.deferred.bytes() if self._table is not None else 0

    def cells(self) -> str:
        """The cells that it belongs to, for messages: `In[2] and In[3]`."""
        return " and ".join(f"In[{number}]" for number in self._cells)

    def may_grow(self) -> bool:
        """Whether a cell may leave memory in its session: no background work here could see it, and little is kept."""
        kept = self._table.deferred.kept_bytes() if self._table is not None else 0
        return kept < MOST_KEPT_BYTES and not has_background_work(self._home.shell)

    # ---- what a call reports ----

    def applied(self, table: Table, call: int, cell: int) -> None:
        """A cell's changes have been applied, except for the bytes that it left out."""
        if not table.deferred.numbers:
            self._settled()
            return
        self._table, self._call = table, call
        self._cells.append(cell)

    def take(self, message: Message) -> None:
        """Handles what the proxy sends between two calls."""
        if self._table is None or message.body["call"] != self._call:
            message.close()
            return
        trouble = None
        if message.name == "deferred_lost":
            self._lose(message.body["error"]["value"])
            message.close()
            return
        try:
            assert message.file_descriptor is not None
            self._table.complete(message.body["delta"], message.file_descriptor)
        except (OSError, MemoryError):  # this machine may have room later
            self.keep(message)
            return
        except Exception as error:  # bytes that do not fit the table
            trouble = f"{type(error).__name__}: {errors.short(error)}"
            self._lose(f"Deferred results could not be applied ({trouble})")
        else:
            self._settled()
            self._home.undo_log.deferred_arrived()
        message.close()
        self._home.link.send("applied", call=message.body["call"], error=trouble)

    def give_up(self) -> None:
        """Gives up the deferred state, at the student's request."""
        if self.due:
            with postponed():
                call = self._call
                self._lose("They were given up before they had arrived")
                with contextlib.suppress(LinkClosed):
                    self._home.link.send("applied", call=call, error="The notebook gave it up")

    def _settled(self) -> None:
        self._table = None
        self._cells.clear()

    def _lose(self, reason: str) -> None:
        assert self._table is not None
        away = self._table.deferred
        names = away.names()
        may_be_unchanged = bool(names) and away.may_be_unchanged()
        self._table.roll_back()
        self._home.undo_log.deferred_lost()
        self._home.void()
        self._home.forget_results(self._cells)
        which = f"Your variables {listed(names)}" if names else "Your variables"
        cells, before = self.cells(), f"{which} are as they were before In[{self._cells[0]}]"
        if may_be_unchanged:
            self.loss += [
                f"warning: What {cells} may have changed on the GPU is lost: {reason}",
                f"{before}. If {cells} changed them, run {cells} again",
            ]
        else:
            self.loss += [f"warning: The results of {cells} are lost: {reason}", f"{before}. Run {cells} again"]
        self._settled()

    # ---- waiting ----

    def fetch(self) -> None:
        """Returns when everything has arrived or is lost. Raises `NotYetHere` if the student interrupts.

        On the thread of a subshell, this also waits for a running `%%gpu` cell, because only that cell may receive.
        """
        interrupts = None
        if self.due:
            with self._home.turn, Interrupts() as interrupts:
                self._wait(interrupts)
        if self.loss:
            sys.stderr.write("".join(f"{line}\n" for line in self.loss))
            sys.stderr.flush()
            self.loss.clear()
        if interrupts is not None:
            interrupts.strike()  # it stops the code that waited, although everything has arrived

    def poll(self, *, in_cell: bool = True) -> None:
        """Handles what has arrived.

        A loss is handled only in a cell. It may restore context variables, which `decimal` and numpy use, and the event
        loop's callbacks have a copy of the cells' context.
        """
        with postponed():
            if in_cell or self._later is None or self._later.name != "deferred_lost":
                self._take_later()
            while (message := self._home.link.receive(timeout=0)) is not None:
                if in_cell or message.name != "deferred_lost":
                    self._home.overdue(message)
                else:
                    self.keep(message)

    def keep(self, message: Message) -> None:
        """Keeps the message for the next `poll`."""
        if self._later is not None:
            self._later.close()
        self._later = message

    def _take_later(self) -> None:
        message, self._later = self._later, None
        if message is not None:
            self.take(message)

    def _wait(self, interrupts: Interrupts) -> None:
        began, said = time.monotonic(), False
        while self.due:
            self._take_later()
            if not self.due:
                return
            try:
                message = self._home.link.receive(interrupts, TICK_SECONDS)
            except LinkClosed:
                self._lose("Baton's proxy, which connects this kernel with the GPU machines, has ended")
                return
            if message is not None:
                self._home.overdue(message)
            elif interrupts.count:
                lines = [
                    f"KeyboardInterrupt: {size(self.bytes())} of the results of {self.cells()} have not arrived yet",
                    "This cell did not run. Missing results keep arriving; '%gpu_reset --lose' gives them up",
                ]
                raise errors.with_lines(NotYetHere(), lines)
            if self.due and not said and time.monotonic() - began > SAID_AFTER_SECONDS:
                said = True
                what = f"{size(self.bytes())} of the results of {self.cells()}"
                sys.stderr.write(f"Waiting for {what} from the GPU machine\n")
                sys.stderr.flush()

    # ---- while the kernel has nothing to do ----

    def listen(self) -> None:
        """After a cell: while the kernel is idle, receives the proxy's messages as output of that cell."""
        try:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._home.link.fileno(), self._readable)
        except (RuntimeError, NotImplementedError):  # a cell of another thread: the next cell receives
            self._loop = None

    def _quiet(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._home.link.fileno())
        self._loop = None

    def _readable(self) -> None:
        """Called while the kernel is between two cells, or a cell in this kernel's loop awaits."""
        if self._home.busy:
            self._quiet()
            return
        try:
            self.poll(in_cell=False)
        except LinkClosed:
            self._quiet()

    # ---- before the student's code runs ----

    def _wrap_shell(self, shell: Any) -> None:
        shell.ast_transformers.insert(0, Barrier(self))
        evaluate = shell.user_expressions

        @functools.wraps(evaluate)
        def user_expressions(expressions: dict[str, str]) -> Any:
            if expressions:
                self.fetch()
                self._before(lambda: analysis.of_cell("\n".join(expressions.values()), str))
            return evaluate(expressions)

        shell.user_expressions = user_expressions
        handlers = getattr(getattr(shell, "kernel", None), "shell_handlers", {})
        for name in COMMS:
            if name in handlers:
                handlers[name] = self._after_deferred(handlers[name])

    def _after_deferred(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(handle)
        def handle_later(stream: Any, identity: Any, message: Any) -> Any:
            self.fetch()
            if called := self._called_by(message["content"]):
                self._before(analysis.CellNames, called)
            return handle(stream, identity, message)

        return handle_later

    def _called_by(self, content: dict[str, Any]) -> list[Any]:
        """The callbacks that a comm message runs, apart from Baton's own, which use no variables."""
        manager = self._home.shell.kernel.comm_manager
        comm = manager.comms.get(content.get("comm_id"))
        found = [getattr(comm, name, None) for name in ("_msg_callback", "_close_callback")]
        found.append(manager.targets.get(content.get("target_name")))
        return [callback for callback in found if callback is not None and not is_own_callback(callback)]

    def before_cell(self, tree: ast.AST) -> None:
        """Called before code of the notebook. Raises `NotYetHere`."""
        self.fetch()
        self._before(lambda: analysis.of_tree(cast(ast.Module, tree), self._home.shell.transform_cell))
        if self._home.background is not None:
            self._home.background.cell_begins()

    def _before(self, names: Callable[[], analysis.CellNames], objects: Iterable[object] = ()) -> None:
        if self._home.background is not None:
            self._home.background.before(names, objects)


class Barrier(ast.NodeTransformer):
    """Visits each cell before it runs; changes nothing."""

    def __init__(self, deferred: Deferred) -> None:
        self._deferred = deferred

    def visit(self, node: ast.AST) -> ast.AST:
        if needs_nothing(node):
            return node
        try:
            self._deferred.before_cell(node)
        except InputRejected:
            raise
        except Exception as error:  # IPython removes a transformer that raises anything else
            text = f"{type(error).__name__}: {errors.short(error)}"
            lines = [f"KeyboardInterrupt: Baton could not tell whether this cell may run now ({text})"]
            raise errors.with_lines(NotYetHere(), [*lines, "It did not run. Run it again"]) from error
        return node


def is_own_callback(callback: Any) -> bool:
    function = callback.func if isinstance(callback, functools.partial) else callback
    return str(getattr(function, "__module__", "")).startswith(f"{__package__.partition('.')[0]}.")


def needs_nothing(cell: ast.AST) -> bool:
    """Whether a cell consists only of Baton's own magics."""
    statements = getattr(cell, "body", None)
    if not isinstance(statements, list):
        return False
    return all(isinstance(one, ast.Expr) and is_own_magic(one.value) for one in statements)


def is_own_magic(call: ast.expr) -> bool:
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return False
    texts = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    if call.func.attr == "run_line_magic":
        return texts[:1] != [] and texts[0] in OWN_MAGICS
    if call.func.attr != "run_cell_magic" or len(texts) != 3:
        return False
    name, _, body = texts
    return name == "gpu" or (name in ("time", "capture") and GPU_LINE.match(body) is not None)
