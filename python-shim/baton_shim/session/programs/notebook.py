"""A notebook as a job: its cells run one after the other in an IPython kernel of their own.

In: the cells. Out, to `baton run`: for each cell `cell` with its number, everything that the kernel publishes on iopub
for it, and its `execute_reply`.

**Invariant:** after the first cell that fails and may not, no other runs. The kernel ends with the job, or with the
session where it is kept for `baton run --resume`.
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
# A kernel that ended is noticed after this time at the latest.
LOOK_SECONDS = 0.5
# What a kernel publishes leaves it before its reply; if it has not come so long after that, it never will.
LOST_SECONDS = 0.02


LOADED_MODULES = (
    "[file for file in (getattr(module, '__file__', None) for module in list(__import__('sys').modules.values()))"
    " if isinstance(file, str) and file.startswith({folder!r})][:500]"
)
"""Files of modules in the notebook's folder, as the kernel answers; it shortens longer lists."""


class Cell(NamedTuple):
    number: int
    """Among all cells of the notebook, from 0."""
    source: str
    may_fail: bool


def run_notebook(cells: list[tuple[int, str, bool]], keep: str | None = None, begin: int = 0) -> None:
    """Runs the cells until one fails.

    With `keep`, the kernel of a cell that fails stays under this name, with its variables. Then `begin` goes on there
    with a later cell, or, if the kernel is gone, begins with the first.

    Raises:
        ProgramFailed: A cell failed, or the kernel ended. `baton run` has been told.
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
    """The kernel that was kept under this name, if it still runs. Others end: a session runs one notebook at a time."""
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
        """Of the modules that the notebook has loaded from its folder, what their files are like now."""
        self._modules = {path: like(path) for path in self._loaded_modules()}

    def why_not_resumed(self) -> str | None:
        """A module that is loaded stays as it was, which the notebook from the top would not see."""
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
        """Output from before the subscription would be lost, so what the kernel says on iopub has to arrive, too."""
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
        """The content of the reply. An interrupt of the job is one of the cell, and ends the job after it."""
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
                continue  # of what an earlier cell left running: front ends put it below that cell, which has ended
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
            self._process.kill()  # nothing of it is kept
        self._process.wait()
        self._folder.cleanup()


def like(path: str) -> tuple[int, int] | None:
    """Changes with the file's content, as far as its time and size show."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def late() -> ProgramFailed:
    return ProgramFailed(f"The notebook's kernel did not answer within {START_SECONDS} s")


def ending(status: int) -> str:
    """The exit status of a process, for people."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
