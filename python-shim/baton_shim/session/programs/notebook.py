"""A notebook as a job: its cells run one after the other in a separate IPython kernel.

In: the cells. Out, to `baton run`: for each cell `cell` with its number, everything that the kernel publishes on iopub
for it, and its `execute_reply`.

**Invariant:** after a cell that fails and must not fail, no other cell runs. The kernel ends with the job; or with the
session, if it is kept for `baton run --resume`.
"""

from __future__ import annotations

import ast
import contextlib
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.connect import write_connection_file

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
    """
    report = Report()
    kernel = take_kept(keep if begin else None)
    if begin:
        why = "the session has ended meanwhile" if kernel is None else kernel.why_not_resumed()
        if why is not None and kernel is not None:
            kernel.end()
            kernel = None
        report.message("resumed" if kernel is not None else "restarted", {"why": why})
    left = [Cell(*cell) for cell in (cells if kernel is None else cells[begin:])]
    if kernel is None:
        kernel = NotebookKernel(report)
    try:
        for cell in left:
            reply = kernel.run(cell)
            if reply["status"] != "ok" and not cell.may_fail:
                raise ProgramFailed(f"Cell {cell.number + 1}: {reply.get('ename')}: {reply.get('evalue')}")
            if any(payload.get("source") == "ask_exit" for payload in reply.get("payload", ())):
                break  # `exit()`
    except (ProgramFailed, KeyboardInterrupt):
        if keep is not None and kernel.is_alive():
            keep_kernel(keep, kernel)
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


def keep_kernel(name: str, kernel: NotebookKernel) -> None:
    try:
        kernel.note_modules()
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

    def __init__(self, report: Report) -> None:
        self._report = report
        self._start = os.getcwd()
        self._modules: dict[str, tuple[int, int] | None] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="baton-notebook-")
        file = os.path.join(self._folder.name, "connection.json")
        write_connection_file(file, transport="ipc", ip=os.path.join(self._folder.name, "kernel"))
        command = [sys.executable, "-m", "baton_shim.session.programs.notebook_kernel", "-f", file]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        self._client = BlockingKernelClient(connection_file=file)
        self._client.load_connection_file()
        try:
            self._client.start_channels(stdin=False, hb=False)
            self._wait_until_ready()
        except BaseException:
            self.end()
            raise

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def note_modules(self) -> None:
        """Records the current state of the files of all modules that the notebook has loaded from its folder."""
        self._modules = {path: like(path) for path in self._loaded_modules()}

    def why_not_resumed(self) -> str | None:
        """The reason not to resume: a loaded module keeps its old source, and a run from the top would not."""
        changed = [path for path, before in self._modules.items() if like(path) != before]
        return f"{os.path.relpath(changed[0], self._start)} has changed" if changed else None

    def _loaded_modules(self) -> list[str]:
        expression = LOADED_MODULES.format(folder=os.path.join(self._start, ""))
        asked = self._client.execute("", silent=True, user_expressions={"modules": expression}, allow_stdin=False)
        answer = self._reply(asked)["content"].get("user_expressions", {}).get("modules", {})
        text = answer.get("data", {}).get("text/plain")
        paths: list[str] = ast.literal_eval(text) if text else []
        return paths

    def _wait_until_ready(self) -> None:
        """Waits also for a message on iopub, because output before the subscription would be lost."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            asked = self._client.kernel_info()
            self._reply(asked, deadline)
            with contextlib.suppress(queue.Empty):
                while self._client.get_iopub_msg(timeout=LOST_SECONDS)["parent_header"].get("msg_id") != asked:
                    pass
                return
        raise late()

    def run(self, cell: Cell) -> dict[str, Any]:
        """Returns the content of the reply. An interrupt of the job interrupts the cell, and then ends the job."""
        self._report.message("cell", {"number": cell.number})
        asked = self._client.execute(cell.source, allow_stdin=False)
        try:
            reply = self._follow(asked)
        except KeyboardInterrupt:
            self._process.send_signal(signal.SIGINT)
            self._follow(asked)
            raise
        self._report.message("execute_reply", reply["content"], reply["header"]["date"].isoformat())
        content: dict[str, Any] = reply["content"]
        return content

    def _follow(self, asked: str) -> dict[str, Any]:
        """Reports what the kernel publishes until it is idle, and returns the reply."""
        while True:
            try:
                message = self._client.get_iopub_msg(timeout=LOOK_SECONDS)
            except queue.Empty:
                self._check()
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue  # of an earlier cell's background work; a front end would show it below that cell
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                break
            if kind == "stream":
                self._report.stream(content["name"], content["text"])
            elif kind != "status":
                self._report.message(kind, content, message["header"]["date"].isoformat())
        return self._reply(asked)

    def _reply(self, asked: str, deadline: float = math.inf) -> dict[str, Any]:
        while time.monotonic() < deadline:
            try:
                reply: dict[str, Any] = self._client.get_shell_msg(timeout=LOOK_SECONDS)
            except queue.Empty:
                self._check()
                continue
            if reply["parent_header"].get("msg_id") == asked:
                return reply
        raise late()

    def _check(self) -> None:
        if (status := self._process.poll()) is not None:
            raise ProgramFailed(f"The notebook's kernel ended ({ending(status)})")

    def end(self) -> None:
        self._client.stop_channels()
        if self._process.poll() is None:
            self._process.kill()  # nothing in it has to be kept
        self._process.wait()
        self._folder.cleanup()


def like(path: str) -> tuple[int, int] | None:
    """Changes with the file's content, as far as its time and size show that."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def late() -> ProgramFailed:
    return ProgramFailed(f"The notebook's kernel did not answer within {START_SECONDS} s")


def ending(status: int) -> str:
    """The exit status of a process, in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
