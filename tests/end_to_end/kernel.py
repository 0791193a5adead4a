"""A kernel and one client of it, driven message by message."""

from __future__ import annotations

import secrets
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import zmq
from jupyter_client.manager import KernelManager

from end_to_end.place import WHO, Place
from end_to_end.ports import free_ports
from end_to_end.results import Result
from end_to_end.waiting import wait_until

CATCHES_INTERRUPTS = """\
import time
while True:
    try:
        print('runs', flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        print('goes on', flush=True)
"""
"""A cell's last lines, which the first interrupt after "runs" doesn't end: it's printed where interrupts are caught."""

EMPTIES = """\
def empty():
    import gc
    collect, gc.collect = gc.collect, lambda: 0
    try:
        get_ipython().run_line_magic("reset", "-f")
    finally:
        gc.collect = collect
    gc.collect()
empty()
"""
"""`%reset -f` looks for garbage twice: before and after it deletes the variables. With PyTorch, each time takes 0.1 s.
This leaves out the first time."""

PORT_NAMES = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


def kernel_manager(name: str = "baton", **options: Any) -> KernelManager:
    # Jupyter would kill a kernel that takes longer than five seconds to end.
    manager = KernelManager(kernel_name=name, shutdown_wait_time=60, **options)
    if manager.transport == "tcp":
        # Jupyter's own choice of ports may be that of another kernel, which starts at the same time.
        manager.cache_ports = False
        for port_name, port in zip(PORT_NAMES, free_ports(len(PORT_NAMES)), strict=True):
            setattr(manager, port_name, port)
    return manager


class Kernel:
    """A running kernel as a notebook sees it."""

    def __init__(self, manager: KernelManager, place: Place) -> None:
        self.manager = manager
        self.place = place
        self._cells: dict[str, Cell] = {}
        self.debug_events: list[dict[str, Any]] = []
        self._connect()

    @classmethod
    def start(
        cls,
        place: Place,
        name: str = "baton",
        folder: Path | None = None,
        log: Path | None = None,
        transport: str = "tcp",
        **environment: str,
    ) -> Kernel:
        """`log`: where its processes write what they would write to the terminal."""
        manager = kernel_manager(name, transport=transport)
        if transport == "ipc":
            manager.ip = str(place.folder / f"kernel-{secrets.token_hex(4)}")
        options: dict[str, Any] = {"stderr": log.open("ab")} if log else {}
        manager.start_kernel(env=place.environment | environment, cwd=str(folder or place.work), **options)
        try:
            return cls(manager, place)
        except BaseException:
            manager.shutdown_kernel(now=True)
            raise

    def _connect(self) -> None:
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)
        self._channels = (self.client.shell_channel, self.client.iopub_channel, self.client.stdin_channel)
        self._poller = zmq.Poller()
        for channel in self._channels:
            self._poller.register(channel.socket, zmq.POLLIN)

    # ---- cells

    def run(self, code: str, *, seconds: float = 120, answers: Iterable[str] = (), **options: Any) -> Result:
        return self.begin(code, answers=answers, **options).finish(seconds)

    def gpu(self, body: str, **options: Any) -> Result:
        return self.run(f"%%gpu\n{body}", **options)

    def empty(self) -> None:
        """Deletes all variables."""
        self.run(EMPTIES, silent=True).ok()

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the notebook kernel, for values that `repr` writes as literals."""
        import ast

        result = self.run("pass", user_expressions={"value": expression}, store_history=False).ok()
        answer = result.reply["user_expressions"]["value"]
        assert answer["status"] == "ok", answer
        return ast.literal_eval(answer["data"]["text/plain"])

    def begin(self, code: str, *, answers: Iterable[str] = (), **options: Any) -> Cell:
        """`stop_on_error` makes a kernel refuse cells for a moment after an error, however late they are sent."""
        options = {"allow_stdin": True, "stop_on_error": False} | options
        message_id = self.client.execute(code, **options)
        cell = Cell(self, code, deque(answers))
        self._cells[message_id] = cell
        return cell

    def send(self, request: dict[str, Any]) -> Cell:
        """Sends any request on shell; its replies and messages are handled like those of a cell."""
        cell = self._cells[request["header"]["msg_id"]] = Cell(self, request["msg_type"], deque())
        self.client.shell_channel.send(request)
        return cell

    def on_subshell(self, subshell: str, code: str) -> Cell:
        request = self.client.session.msg("execute_request", {"code": code, "silent": False, "store_history": False})
        request["header"]["subshell_id"] = subshell
        return self.send(request)

    def pump(self, seconds: float) -> None:
        """Handles messages that have arrived; waits at most this long for the first one."""
        ready = dict(self._poller.poll(max(0, int(seconds * 1000))))
        for channel in self._channels:
            if channel.socket not in ready:
                continue
            # Receiving through the channel would take about a millisecond per message.
            _, message = self.client.session.recv(channel.socket)
            if message is None:
                continue
            if message["msg_type"] == "debug_event":  # its parent is not a cell
                self.debug_events.append(message["content"])
                continue
            cell = self._cells.get(message["parent_header"].get("msg_id", ""))
            if cell is not None:
                cell.take(message)

    # ---- the toolbar

    def interrupt(self) -> None:
        """Returns when the kernel's process has received the signal."""
        self.ask_control("interrupt_request")

    def ask_control(self, kind: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
        """The content of the reply."""
        request = self.client.session.msg(kind, content or {})
        self.client.control_channel.send(request)
        while True:
            reply = self.client.get_control_msg(timeout=60)
            if reply["parent_header"]["msg_id"] == request["header"]["msg_id"]:
                return dict(reply["content"])

    def restart(self) -> None:
        self.client.stop_channels()
        self.manager.restart_kernel(now=False)
        self._cells.clear()
        self._connect()

    def shutdown(self) -> None:
        if self.manager.has_kernel:
            self.client.stop_channels()
            self.manager.shutdown_kernel()

    # ---- its processes

    @property
    def proxy(self) -> psutil.Process:
        """The process that Jupyter started."""
        return psutil.Process(self.manager.provisioner.pid)

    @property
    def session_pid(self) -> int:
        """The id, outside of the sandbox, of the process that runs this notebook's `%%gpu` cells."""
        return self.place.session_pid(self.gpu(f"import os; print({WHO})").ok().stdout)

    def kill_session(self) -> None:
        """Returns when the worker has noticed."""
        session = psutil.Process(self.session_pid)
        session.send_signal(signal.SIGKILL)
        wait_until(lambda: not session.is_running(), "the session is gone")


class Cell:
    """A cell that was sent."""

    def __init__(self, kernel: Kernel, code: str, answers: deque[str]) -> None:
        self.kernel = kernel
        self.code = code
        self.published: list[dict[str, Any]] = []
        self.questions: list[dict[str, Any]] = []
        self.reply: dict[str, Any] | None = None
        self.idle = False
        self.speaks_after_idle = False
        """Whether messages after the cell's end are accepted."""
        self._answers = answers

    def take(self, message: dict[str, Any]) -> None:
        kind = message["msg_type"]
        if kind.endswith("_reply"):
            self.reply = message["content"]
        elif kind == "input_request":
            self.questions.append(message["content"])
            if self._answers:
                self.kernel.client.input(self._answers.popleft())
        elif kind == "status":
            assert not self.idle, f"{self.code}: {message['content']} after idle"
            self.idle = message["content"]["execution_state"] == "idle"
        else:
            assert not self.idle or self.speaks_after_idle, f"{self.code}: output after idle: {message['content']}"
            self.published.append(message)

    def wait_for(self, condition: Callable[[Result], object], what: str, seconds: float = 120) -> Result:
        """Waits until the messages so far meet the condition."""
        deadline = time.monotonic() + seconds
        while not condition(self.so_far):
            left = deadline - time.monotonic()
            if left < 0 or (self.done and not self.speaks_after_idle):
                ended = "the cell ended first" if self.done else f"not within {seconds} s"
                raise AssertionError(f"{what}: {ended}\n{self.code}\n{self.so_far.outputs}\n{self.reply}")
            self.kernel.pump(min(left, 1))
        return self.so_far

    def wait_for_text(self, text: str) -> Result:
        return self.wait_for(lambda result: text in result.stdout, f"{text!r} is printed")

    def wait_for_question(self) -> None:
        self.wait_for(lambda _: self.questions, "input() asks")

    def wait_for_idle(self) -> None:
        """For requests without a reply."""
        self.wait_for(lambda _: self.idle, "the request is over")

    def finish(self, seconds: float = 120) -> Result:
        """Waits for both the reply and the end of output, in any order."""
        deadline = time.monotonic() + seconds
        while not self.done:
            left = deadline - time.monotonic()
            if left < 0:
                raise AssertionError(f"Not done in {seconds} s: {self.code}\n{self.so_far.outputs}\n{self.reply}")
            self.kernel.pump(min(left, 1))
        return self.so_far

    @property
    def done(self) -> bool:
        return self.idle and self.reply is not None

    @property
    def so_far(self) -> Result:
        return Result(self.code, self.reply or {}, list(self.published))
