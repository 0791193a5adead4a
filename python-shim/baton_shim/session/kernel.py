"""The kernel of a session.

It talks over the private socket. In: `Run`, a cell with the state that it needs, and `Begin`. Out: what the cell
publishes, and what it changed. Nothing connects to the kernel's ZeroMQ sockets (`sockets.py`).

**Invariant:** a cell runs only once, after its state has been applied and `Begin` has arrived. State leaves the process
only between `Finished` and `Released`.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import platform
import sys
import threading
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

from ipykernel.ipkernel import IPythonKernel
from IPython.core.error import StdinNotImplementedError
from IPython.core.interactiveshell import ExecutionResult
from traitlets import Type

from baton_shim.base import wire
from baton_shim.base.background_work import names_of_background_work
from baton_shim.base.comms import SessionComms
from baton_shim.base.compat import FIT
from baton_shim.base.frames import hide_from_tracebacks
from baton_shim.base.gpu_facts import ASKING
from baton_shim.base.here import by_reference, watch_images
from baton_shim.base.interrupts import Interrupts
from baton_shim.base.link import Link, LinkClosed, Message
from baton_shim.base.packages import Allowed
from baton_shim.session.blocks import SessionBlocks
from baton_shim.session.both import BothRunner
from baton_shim.session.gpu_cache import GpuCache
from baton_shim.session.leaving_out import leave_out
from baton_shim.session.name_faults import NameFaults, watch_main
from baton_shim.session.publisher import Publisher
from baton_shim.session.salvage import Left, salvage
from baton_shim.session.shell import SessionShell
from baton_shim.state import errors
from baton_shim.state.refusal import first_name
from baton_shim.state.session_names import SessionNames
from baton_shim.surroundings import Difference, Surroundings, warn
from baton_shim.surroundings.imports import imported_by
from baton_shim.surroundings.log_files import SessionLogFiles
from baton_shim.surroundings.plots import BACKEND
from baton_shim.virtual import SWITCH

if TYPE_CHECKING:
    from baton_shim.base.local_modules import LocalModules
    from baton_shim.base.undoing import OnUndo
    from baton_shim.state import Snapshot


class SessionKernel(IPythonKernel):  # type: ignore[misc]
    """An IPython kernel that gets its cells from the worker."""

    shell_class = Type(SessionShell)
    interrupts: Interrupts

    def join(self, link: Link, modules: LocalModules) -> None:
        """Connects to the worker; called once, before the first cell."""
        from baton_shim.state import Table

        by_reference(self.shell)
        watch_images()
        hide_from_tracebacks()
        BACKEND.draw_for_the_notebook()
        SWITCH.begin(session=True)
        self._link = link
        self._modules = modules
        self._new_table = partial(Table, self.shell.user_ns, modules.apply, modules.packages.missing)
        self._table = self._new_table()
        self._names = SessionNames(self.shell.user_ns)
        self._turn = threading.Lock()  # held by the cell or one of its threads while it talks to the notebook
        self._faults = NameFaults(self.shell.user_ns, self._names, self._turn, self._ask_for_names)
        watch_main(self.shell.user_module, self._faults)
        self.shell.faults = self._faults
        self.shell.custom_handler = None
        self.surroundings = Surroundings(self.shell.user_ns, modules, SessionLogFiles())
        self.surroundings.add(SessionComms(self))
        self._gpu_cache = GpuCache()
        self._troubles: list[str] = []
        self._both = BothRunner(self)
        self.blocks = SessionBlocks(self.shell)
        modules.both.run = self._both.run
        self._question = 0
        self._gpu_error: str | None = None
        self._left: Left | None = None  # what the last cell left, if another kernel may want it
        self._context = contextvars.copy_context()
        self._message_id = ""
        self._file = ""

    def try_a_cell(self) -> None:
        """Raises any error that would stop a cell or the sending of its results. Makes the session unusable."""
        self.shell.run_cell("found = sum(range(10))", store_history=False).raise_error()
        self._table.snapshot(["found"])
        self._gpu_error = ASKING.error()

    def start(self) -> None:
        super().start()
        self._publisher = Publisher(self._link, self.iopub_thread)
        self._loop: asyncio.AbstractEventLoop = self.io_loop.asyncio_loop
        self._listen()
        overlay = self._modules.packages.overlay
        self._link.hello(overlay.worker_python if overlay else sys.executable, self._gpu_error)

    def _listen(self) -> None:
        self._loop.add_reader(self._link, self._on_readable)

    def _on_readable(self) -> None:
        """While a cell runs, the cell itself receives."""
        self._loop.remove_reader(self._link)
        self._serving = self._loop.create_task(self._serve(), context=self._context)  # the variables of a cell persist

    async def _serve(self) -> None:
        try:
            while (message := self._link.receive(timeout=0)) is not None:
                if message.name == "run":
                    await self._serve_cell(message)
                elif message.name == "salvage":
                    self._salvage()
                else:  # an outdated message
                    message.close()
        except LinkClosed:
            os._exit(1)  # no other process can use this session
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)  # the session's state is unknown
        self._listen()

    async def _serve_cell(self, message: Message) -> None:
        cell = message.body
        self._message_id, self._left = cell["message_id"], None
        request = self.session.msg("execute_request", {key: cell[key] for key in ("code", "silent", "allow_stdin")})
        request["header"]["msg_id"] = request["msg_id"] = self._message_id
        self.set_parent([], request, channel="shell")
        with Interrupts() as self.interrupts:
            prepared = self._apply(message)
            if isinstance(prepared, BaseException):
                self._refuse(prepared)
                return
            self._wait_for_begin()
            self._link.send("started", message_id=self._message_id)
            self.surroundings.patches.expect(cell["code"], self.shell.user_ns)
            self._faults.open(prepared["dynamic"])
            code = self.blocks.begin(prepared.get("block"), cell["code"])
            self.shell.block_runs = prepared.get("block") is not None
            reply = await self._run(code, cell["silent"], cell["allow_stdin"])
            self._publisher.end_fork(reply.get("traceback", []))
            self.shell.cell_ended()
            self._faults.close()
            self._gpu_cache.end_cell(self._loop)
            self.surroundings.patches.read(cell["code"], self.shell.user_ns)
            self._finish(reply, prepared)

    def _wait_for_begin(self) -> None:
        """The cell must not start earlier, because the broker may still assign it to another worker."""
        while (message := self._receive()).name != "begin" or message.body["message_id"] != self._message_id:
            message.close()

    def _receive(self) -> Message:
        """The next message; interrupts remain counted. Drops answers to an `input()` that no longer waits."""
        while True:
            message = self._link.receive()
            if message is not None and message.name != "input":
                return message

    def _apply(self, message: Message) -> dict[str, Any] | BaseException:
        shell = self.shell
        shell.execution_count = message.body["execution_count"]
        try:
            self._names.whole()
            assert message.file_descriptor is not None
            with shell.builtin_trap:  # the student's modules may call `get_ipython` when they are imported
                table, delta = self._table, message.body["delta"]
                extra: Any = table.apply(delta, message.file_descriptor, apply_extra=self._apply_extra)
            self.surroundings.patches.take_places(extra["patched"])
            shell.displayhook.notebook_results = extra["results"]
            self.surroundings.settings.settle(self._table.rebuilt)
            self._names.begin(extra["names"], filter(None, extra["notebook"].split("\0")), extra["deleted"])
            if isinstance(last := extra["last_error"], BaseException):
                sys.last_type, sys.last_value, sys.last_traceback = type(last), last, last.__traceback__
        except BaseException as error:  # any error of the student's own classes while they are rebuilt
            return error
        finally:
            message.close()
        packages = self._modules.packages.take_troubles(imported_by(message.body["code"]))
        self._troubles = [*packages, *self._both.take_troubles(), *self._troubles]
        for line in FIT.news():  # only to the log; the notebook kernel reports its own versions to the student
            sys.__stderr__.write(f"{line}\n")  # type: ignore[union-attr]
        self._remember_sources(extra)
        prepared: dict[str, Any] = extra
        return prepared

    def _apply_extra(self, extra: dict[str, Any], undo: OnUndo) -> None:
        self._troubles = self.surroundings.apply(extra, undo)

    def _remember_sources(self, extra: dict[str, Any]) -> None:
        for file_name, (number, source) in extra["sources"].items():
            remember_source(self.shell, file_name, number, source)

    def _ask_for_names(self, names: list[str]) -> None:
        """Asks for names. What the cell has changed so far stays as it is; only missing objects arrive."""
        count = self.interrupts.count
        with self.interrupts.held():
            self._link.send("names_wanted", message_id=self._message_id, names=names)
            message = self._receive()
            bound = self._names.bound()
            if message.name == "no_names":
                gone = {
                    name: (f"'{name}' is not here: the notebook kernel that had it has ended", None) for name in names
                }
                self._names.on_supplement([], names, gone, bound)
                return
            try:
                assert message.file_descriptor is not None
                extra: Any = self._table.apply(message.body["delta"], message.file_descriptor, keeps_bound=True)
            except BaseException as error:  # of the student's own classes; the two tables no longer agree
                self._refuse(error)
                raise
            finally:
                message.close()
            self._names.on_supplement(extra["names"], names, extra["refused"], bound)
            if extra["dynamic"]:
                self._faults.watch_text()
            self._remember_sources(extra)
        if self.interrupts.count > count and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt

    def _refuse(self, error: BaseException) -> None:
        reason = refusal_of(error, self._table.failed_at, self._modules.packages.allowed)
        self._link.send("refused", message_id=self._message_id, error=reason)

    async def _run(self, code: str, silent: bool, allow_stdin: bool) -> dict[str, Any]:
        shell = self.shell
        shell.displayhook.take()
        shell.displayhook.take_earlier()
        shell.last_execution_result = ExecutionResult(None)  # %xdel reads it
        shell.displayhook.cell = None
        for line in self._modules.packages.take_notes():
            sys.stdout.write(f"{line}\n")
        for line in self._troubles:
            warn(line)
        ticking = asyncio.ensure_future(tick())
        try:
            with self.interrupts.raising():
                if self.interrupts.count:
                    raise KeyboardInterrupt
                # No history here: prompts, In and Out belong to the notebook kernel.
                reply: dict[str, Any] = await self.do_execute(
                    code, silent, store_history=False, allow_stdin=allow_stdin
                )
        except BaseException as error:  # an interrupt between the cell's code and the code around it
            raised = getattr(shell.last_execution_result, "error_in_exec", None)
            if raised is not None and not errors.has_text(raised):  # the kernel failed to write its reply
                reply = error_reply(shell, type(raised).__name__, errors.short(raised))
            else:
                shell.showtraceback((type(error), error, error.__traceback__), running_compiled_code=True)
                reply = error_reply(shell, type(error).__name__, errors.short(error))
                shell.last_execution_result = None
        finally:
            ticking.cancel()
        self._file = shell.compile.get_code_name(code, shell.displayhook.cell or "", shell.execution_count)
        return reply

    def _finish(self, reply: dict[str, Any], prepared: dict[str, Any]) -> None:
        self._link.send("ended", message_id=self._message_id)
        outcome, error, raised = self._outcome(reply)
        self.shell.last_execution_result = None  # it refers to the value
        result, earlier = self.shell.displayhook.take(), self.shell.displayhook.take_earlier()
        if self.shell.block_runs or prepared.get("outlives"):  # no cell of the notebook has these values
            earlier = []
        names, gone = self._names.changed(prepared["stores"], prepared["drop"])
        around = self.surroundings.look(prepared["returns"])
        if not prepared["returns"]:
            if result is not None:
                self.shell.display_pub.publish(result.data, result.metadata)
            names, gone, result, earlier = [], [], None, []
        extra: dict[str, Any] = {
            "names": names,
            "error": errors.describe(raised) if raised is not None else None,
            "raised": raised if self._is_sent_itself(raised) else None,
            "payload": reply.get("payload", []),
            "bundle": (result.data, result.metadata) if result else None,
            "earlier": earlier,
            "file": self._file,
            "displays_after": self.shell.take_displays_after(),
            "background_names": sorted(names_of_background_work(self.shell)),
            "where": (platform.node(), os.getpid()),
        }
        if self.shell.block_runs:
            given, (ended, returned) = self.blocks.end()
            extra |= {"ended": ended, "returned": returned if prepared["returns"] else None}
            if prepared["returns"] and given is not None:
                extra["given"] = given
        if result:
            extra["value"] = result.value
        if prepared.get("outlives"):
            value = extra.get("value") if prepared.get("block") is None else extra["returned"]
            self._left = Left(names, value, extra["displays_after"])
        snapshot = self._snapshot(names, gone, extra, around, prepared)
        self._publisher.end()
        self._link.send(
            "finished",
            message_id=self._message_id,
            outcome=outcome,
            error=error,
            state=snapshot.as_wire(),
            deferred_bytes=snapshot.deferred_bytes,
            keeps=self._table.keeps(),
        )
        self._names.on_returned(names, gone)
        while self._receive().name != "released":
            pass
        self._table.release()
        if snapshot.deferred_bytes:
            self._settle()

    def _salvage(self) -> None:
        if self._left is None:
            return
        with Interrupts():
            body, table = salvage(self.shell, self._modules, self._left)
            self._left = None
            self._link.send("salvaged", message_id=self._message_id, **body)
            while table is not None and self._receive().name != "released":
                pass

    def _settle(self) -> None:
        """Starts a process that preserves the deferred bytes, whatever the next cell does to them."""
        from baton_shim.state.keeper import keep

        deferred = self._table.snapshot_deferred()
        process = keep(deferred.segments)
        self._link.send("deferred_ready", message_id=self._message_id, state=deferred.as_wire(), keeper=process)

    def _snapshot(
        self, names: list[str], gone: list[str], extra: dict[str, Any], around: Difference, prepared: dict[str, Any]
    ) -> Snapshot:
        from baton_shim.state import Budget

        budget = Budget(*prepared["budget"]) if prepared.get("budget") is not None else None
        left: list[str] = []
        partings = prepared["returns"]
        while True:
            try:
                snapshot = self._table.snapshot(
                    names,
                    extra=extra | around.parts | {"left": left},
                    deleted=gone,
                    unsent=self._names.unsent(names),
                    partings=partings,
                    modules=around.modules,
                    budget=budget,
                )
                break
            except Exception as error:  # single objects that cannot be sent stay here; this is another error
                titles = self.surroundings.titles()
                lines = leave_out(error, self._new_table, self.shell.user_ns, names, extra, around.parts, titles)
                if not (lines or partings):
                    return self._loss(error, extra)
                left += lines
                partings &= bool(lines)  # otherwise it may be in an object that is no longer used here
        self.surroundings.commit(around, lambda action: None)
        return snapshot

    def _loss(self, error: Exception, extra: dict[str, Any]) -> Snapshot:
        lost = f"{type(error).__name__}: {errors.short(error)}"
        nothing: dict[str, Any] = {"names": [], "raised": None, "payload": [], "bundle": None, "file": "", "left": []}
        nothing |= {key: extra[key] for key in ("error", "displays_after")}
        return self._table.snapshot([], extra=nothing | {"lost": lost}, partings=False)

    def _is_sent_itself(self, error: BaseException | None) -> bool:
        """Whether the error object itself is sent.

        If a variable refers to the error, the notebook must get that same object. Otherwise the notebook may lack the
        libraries of the error, or of the object of an AttributeError, and its kernel cannot show one without a text.
        """
        if error is not None and not errors.has_text(error):
            return False
        if error is None or self._table.knows(error):
            return error is not None
        own = ("builtins", "__main__")
        return all(type(link).__module__ in own and not hasattr(link, "obj") for link in errors.linked(error))

    def _outcome(self, reply: dict[str, Any]) -> tuple[str, dict[str, Any] | None, BaseException | None]:
        if reply["status"] == "ok":
            return "ok", None, None
        ended = self.shell.last_execution_result
        error = (ended.error_before_exec or ended.error_in_exec) if ended else None
        if error is not None and self.shell.block_frames is not None:
            error.__traceback__, self.shell.block_frames = self.shell.block_frames, None
        remote = wire.remote_error(reply["ename"], reply["evalue"], list(reply.get("traceback") or []))
        forget_frames(error, self.shell.user_ns)
        cancelled = reply["ename"] in ("KeyboardInterrupt", "CancelledError")
        return ("cancelled" if cancelled else "error"), remote, error

    def raw_input(self, prompt: str = "") -> str:
        return self._ask(str(prompt), password=False)

    def getpass(self, prompt: str = "", stream: object = None, **options: object) -> str:
        return self._ask(str(prompt), password=True)

    def _ask(self, prompt: str, password: bool) -> str:
        if not self._allow_stdin:
            what = "getpass" if password else "raw_input"
            raise StdinNotImplementedError(f"{what} was called, but this frontend does not support input requests.")
        self._publisher.end()
        if threading.current_thread() is not threading.main_thread():
            raise StdinNotImplementedError("input() works in the cell itself only, not in its threads")
        with self._turn, self.interrupts.held():
            value = self._answer(prompt, password)
        if value is None:
            raise KeyboardInterrupt("Interrupted by user")
        if value == "\x04":
            raise EOFError
        return value

    def _answer(self, prompt: str, password: bool) -> str | None:
        """The student's answer; None if an interrupt came instead."""
        self._question += 1
        self._link.send(
            "input_wanted", message_id=self._message_id, question=self._question, prompt=prompt, password=password
        )
        count = self.interrupts.count
        while True:
            message = self._link.receive(self.interrupts)
            if message is None:
                if self.interrupts.count > count:
                    return None
            elif message.name == "input" and message.body["question"] == self._question:
                value: str | None = message.body["value"]
                return value
            else:  # an outdated message, too
                message.close()


async def tick() -> None:
    """Keeps the loop awake: ipykernel cancels an awaiting cell in the loop's next turn, but does not wake the loop."""
    while True:
        await asyncio.sleep(0.05)


def error_reply(shell: SessionShell, name: str, value: str) -> dict[str, Any]:
    return {
        "status": "error",
        "ename": name,
        "evalue": value,
        "traceback": getattr(shell, "_last_traceback", None) or [],
        "execution_count": shell.execution_count,
        "user_expressions": {},
        "payload": [],
    }


def refusal_of(error: BaseException, path: str | None, allowed: Allowed) -> dict[str, Any]:
    """The reason that the state could not be restored, for the student. `path`: to what could not be rebuilt."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        install = f"install it in a %%gpu cell without variables: %pip install {package}"
        return wire.remote_error(
            "ModuleNotFoundError",
            f"Package '{package}' is used here but is not installed on the GPU machine",
            hint=install if all(allowed) else "ask your course staff to install it",
        )
    if type(error).__name__ == "TableBroken":
        return wire.remote_error("StateRefused", errors.short(error))
    text = f"{type(error).__name__}: {errors.short(error)}"
    what, hint = "The variables of this cell", None
    if path is not None:
        what, hint = f"'{path}'", f"create it inside the cell, or leave it out: %%gpu --drop {first_name(path)}"
    return wire.remote_error("StateRefused", f"{what} could not be restored on the GPU machine ({text})", hint=hint)


def remember_source(shell: SessionShell, file_name: str, number: int, source: str) -> None:
    """Lets tracebacks and `inspect` show a cell of the other kernel as `Cell In[number]`."""
    import linecache

    lines = [line + "\n" for line in source.splitlines()]
    linecache.cache[file_name] = (len(source), None, lines, file_name)
    shell.compile._filename_map[file_name] = number


def forget_frames(error: BaseException | None, namespace: dict[str, Any]) -> None:
    """Drops the frames of a failed cell, which refer to its arrays. There is no debugger here."""
    from baton_shim.state.kinds import traces

    sys.last_type = sys.last_value = sys.last_traceback = None
    for link in errors.linked(error):
        link.__traceback__ = traces.without_variables(link.__traceback__, namespace)
