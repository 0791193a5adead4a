"""A notebook as a job: its cells run one after the other in a separate IPython kernel.

In: the cells. Out, to `baton run`: for each cell `cell` with its number, everything that the kernel publishes on iopub
for it, and its `execute_reply`.

Interrupts of the job are held. Each one is passed on to the cell that runs, and the job ends with this cell.

**Invariant:** after a cell that fails and must not fail, no other cell runs. The kernel ends with the job; or with the
session, if it is kept for `baton run --resume`. An interrupt loses no message of the kernel.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.connect import write_connection_file
from zmq.constants import PollEvent
from zmq.sugar.poll import Poller

from baton_shim.base.interrupts import Interrupts
from baton_shim.session.programs.report import ProgramFailed, Report

START_SECONDS = 60
# The end of a kernel is noticed after at most this time.
LOOK_SECONDS = 0.5
# A kernel sends its output before its reply. Output that has not arrived this long after the reply never will.
LOST_SECONDS = 0.02


LOADED_MODULES = (
    "[file for file in (getattr(module, '__file__', None) for module in list(__import__('sys').modules.values()))"
    " if isinstance(file, str) and file.startswith({folder!r})][:500]"
)
"""The files of modules in the notebook's folder; at most 500, because the kernel shortens long lists."""


class Cell(NamedTuple):
    number: int
    """Its number among all cells of the notebook, from 0."""
    source: str
    may_fail: bool


def run_notebook(cells: list[tuple[int, str, bool]], keep: str | None = None, begin: int = 0) -> None:
    """Runs the cells until one fails.

    With `keep`, the kernel of a cell that fails is kept under this name, with its variables. The next run then
    continues there with the cell `begin`; if the kernel is gone, it starts with the first cell.

    Raises:
            ProgramFailed: A cell failed, or the kernel ended. `baton run` has already been informed.
            KeyboardInterrupt: The job was interrupted.
    """
    report = Report()
    with Interrupts() as interrupts:
        kernel = take_kept(keep if begin else None)
        if begin:
            why = "the session has ended meanwhile" if kernel is None else kernel.why_not_resumed()
            if why is not None and kernel is not None:
                kernel.end()
                kernel = None
            report.message("resumed" if kernel is not None else "restarted", {"why": why})
        left = [Cell(*cell) for cell in (cells if kernel is None else cells[begin:])]
        if kernel is None:
            kernel = NotebookKernel(report, interrupts)
        try:
            for cell in left:
                reply = kernel.run(cell, interrupts)
                if reply["status"] != "ok" and not cell.may_fail:
                    raise ProgramFailed(f"Cell {cell.number + 1}: {reply.get('ename')}: {reply.get('evalue')}")
                if any(payload.get("source") == "ask_exit" for payload in reply.get("payload", ())):
                    break  # `exit()`
        except (ProgramFailed, KeyboardInterrupt):
            if keep is not None and kernel.is_alive():
                keep_kernel(keep, kernel, interrupts)
                report.message("kept", {})
            else:
                kernel.end()
            raise
        except BaseException:
            kernel.end()
            raise
        kernel.end()


_kept: list[tuple[str, NotebookKernel]] = []
"""The kernel of the last notebook, if it failed and was to be kept."""


def keep_kernel(name: str, kernel: NotebookKernel, interrupts: Interrupts) -> None:
    """A further interrupt ends the kernel."""
    try:
        kernel.note_modules(interrupts)
    except BaseException:
        kernel.end()
        raise
    _kept.append((name, kernel))


def take_kept(name: str | None) -> NotebookKernel | None:
    """The kernel that was kept under this name, if it still runs. Ends any other: a session runs one at a time."""
    found = None
    while _kept:
        kept, kernel = _kept.pop()
        if kept == name and kernel.is_alive():
            found = kernel
        else:
            kernel.end()
    return found


class NotebookKernel:
    """A plain IPython kernel beside the session, with the session's GPU, folder and packages."""

    def __init__(self, report: Report, interrupts: Interrupts) -> None:
        self._report = report
        self._start = os.getcwd()
        self._modules: dict[str, tuple[int, int] | None] = {}
        # No longer needed once the sockets are connected. So it is gone however the session ends.
        with tempfile.TemporaryDirectory(prefix="baton-notebook-") as folder:
            file = os.path.join(folder, "connection.json")
            write_connection_file(file, transport="ipc", ip=os.path.join(folder, "kernel"))
            command = [sys.executable, "-m", "baton_shim.session.programs.notebook_kernel", "-f", file]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
            self._client = BlockingKernelClient(connection_file=file)
            try:
                self._client.load_connection_file()
                self._client.start_channels(stdin=False, hb=False, control=False)
                self._wait_until_ready(interrupts)
            except BaseException:
                self.end()
                raise

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def note_modules(self, interrupts: Interrupts) -> None:
        """Records the current state of the files of all modules that the notebook has loaded from its folder."""
        self._modules = {path: like(path) for path in self._loaded_modules(interrupts)}

    def why_not_resumed(self) -> str | None:
        """The reason not to resume: a loaded module keeps its old source, and a run from the top would not."""
        changed = [path for path, before in self._modules.items() if like(path) != before]
        return f"{os.path.relpath(changed[0], self._start)} has changed" if changed else None

    def _loaded_modules(self, interrupts: Interrupts) -> list[str]:
        expression = LOADED_MODULES.format(folder=os.path.join(self._start, ""))
        asked = self._client.execute("", silent=True, user_expressions={"modules": expression}, allow_stdin=False)
        count = interrupts.count
        while (message := self._receive(self._client.shell_channel, interrupts, asked)) is None:
            if interrupts.count > count:
                raise KeyboardInterrupt
        answer = message["content"].get("user_expressions", {}).get("modules", {})
        text = answer.get("data", {}).get("text/plain")
        paths: list[str] = ast.literal_eval(text) if text else []
        return paths

    def _wait_until_ready(self, interrupts: Interrupts) -> None:
        """Waits also for a message on iopub, because output before the subscription would be lost."""
        deadline = time.monotonic() + START_SECONDS
        client = self._client
        asked = client.kernel_info()
        while time.monotonic() < deadline:
            if interrupts.count:
                raise KeyboardInterrupt
            if self._receive(client.shell_channel, interrupts, asked) is not None:
                if self._receive(client.iopub_channel, interrupts, asked, LOST_SECONDS) is not None:
                    return
                asked = client.kernel_info()
        raise ProgramFailed(f"The notebook's kernel did not answer within {START_SECONDS} s")

    def run(self, cell: Cell, interrupts: Interrupts) -> dict[str, Any]:
        """Returns the content of the reply. Raises KeyboardInterrupt after a cell in which the job was interrupted."""
        if interrupts.count:
            raise KeyboardInterrupt
        self._report.message("cell", {"number": cell.number})
        asked = self._client.execute(cell.source, allow_stdin=False)
        self._follow(asked, interrupts)
        while (reply := self._receive(self._client.shell_channel, interrupts, asked)) is None:
            pass
        if interrupts.count:
            raise KeyboardInterrupt
        self._report.message("execute_reply", reply["content"], reply["header"]["date"].isoformat())
        content: dict[str, Any] = reply["content"]
        return content

    def _follow(self, asked: str, interrupts: Interrupts) -> None:
        """Reports what the kernel publishes until it is idle."""
        begun, passed_on = False, 0
        while True:
            if begun and interrupts.count > passed_on:  # before, the kernel would ignore it
                passed_on = interrupts.count
                self._process.send_signal(signal.SIGINT)
            # Messages of an earlier cell's background work are left out; a front end would show them below that cell.
            message = self._receive(self._client.iopub_channel, interrupts, asked)
            if message is None:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return
            begun |= kind == "execute_input"
            if kind == "stream":
                self._report.stream(content["name"], content["text"])
            elif kind != "status":
                self._report.message(kind, content, message["header"]["date"].isoformat())

    def _receive(
        self, channel: Any, interrupts: Interrupts, asked: str, seconds: float = LOOK_SECONDS
    ) -> dict[str, Any] | None:
        """The next message that belongs to the request; None if there is none in time, or at an interrupt.

        The client's own functions for this run in another thread, and an interrupt would leave that one waiting there:
        it would take the next message.
        """
        deadline = time.monotonic() + seconds
        poller = Poller()
        poller.register(channel.socket, PollEvent.POLLIN)
        poller.register(interrupts.wake, PollEvent.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            ready = dict(poller.poll(left * 1000))
            if channel.socket in ready:
                message: dict[str, Any] = channel.get_msg(timeout=0)
                if message["parent_header"].get("msg_id") == asked:
                    return message
            elif interrupts.wake in ready:
                interrupts.quiet()
                return None
        self._check()
        return None

    def _check(self) -> None:
        if (status := self._process.poll()) is not None:
            raise ProgramFailed(f"The notebook's kernel ended ({ending(status)})")

    def end(self) -> None:
        self._client.stop_channels()
        if self._process.poll() is None:
            self._process.kill()  # nothing in it has to be kept
        self._process.wait()


def like(path: str) -> tuple[int, int] | None:
    """Changes with the file's content, as far as its time and size show that."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def ending(status: int) -> str:
    """The exit status of a process, in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
