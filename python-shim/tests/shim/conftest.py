"""Two real kernels, the notebook's and its session's, with a small stand-in for proxy, broker and worker between them.

The stand-in transfers state as the Rust side does: it reads the snapshots' memory in place, keeps the last bytes of
each segment, and passes on the differences in a memfd.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import baton_shim
import msgpack
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

MARK = "the mark of all sessions"
PATIENCE = 100.0  # TensorFlow alone takes 10 s to load, on a busy machine several times as long
OUTPUTS = {"stream", "display_data", "update_display_data", "clear_output", "error", "baton_run"}


class Socket:
    """The Rust end of a shim's socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.listener.settimeout(PATIENCE)
        self.stream: socket.socket | None = None

    def accept(self) -> dict[str, Any]:
        self.stream, _ = self.listener.accept()
        self.stream.settimeout(PATIENCE)
        name, hello = self.receive()
        assert name == "hello"
        self.stream.settimeout(None)  # a notebook may be silent for any time, and closes this at its end
        return hello

    def receive(self) -> tuple[str, dict[str, Any]]:
        (length,) = struct.unpack(">Q", self._exactly(8))
        ((name, body),) = msgpack.unpackb(self._exactly(length)).items()
        return name, body

    def _exactly(self, count: int) -> bytes:
        assert self.stream is not None
        data = bytearray()
        while len(data) < count:
            part = self.stream.recv(min(count - len(data), 1 << 20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def send(self, name: str, body: dict[str, Any], file: int | None = None) -> None:
        assert self.stream is not None
        document = msgpack.packb({name: body})
        frame = struct.pack(">Q", len(document)) + document
        files = [] if file is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", file))]
        sent = self.stream.sendmsg([frame], files)
        self.stream.sendall(frame[sent:])

    def close(self) -> None:
        self.listener.close()
        if self.stream is not None:
            self.stream.close()


class Session(Socket):
    """A session, forked from a zygote as workers do by default, and the worker's end of its connection."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self.stream, its = socket.socketpair()
        self.stream.settimeout(PATIENCE)
        variables = {"BATON_SESSION": MARK, "BATON_SHIM_DESCRIPTOR": "3", "JPY_PARENT_PID": str(zygote.process.pid)}
        request = {
            "program": None,
            "arguments": [b"--HistoryManager.hist_file=:memory:"],
            "environment": [(os.fsencode(name), os.fsencode(value)) for name, value in environment(variables).items()],
            "folder": os.fsencode(folder),
            "descriptors": [1, 2, 3],
            "namespaces": 0,
            "filter": b"",
            "watched": b"",
        }
        with its:
            self.pid = zygote.fork(request, [1, 2, its.fileno()])

    def accept(self) -> dict[str, Any]:
        assert self._exactly(1) == b"!"
        name, hello = self.receive()
        assert name == "hello"
        return hello

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.stream.close()


class Zygote:
    """Has loaded what every session needs, and these libraries. Ends with the thread that starts it."""

    def __init__(self, *libraries: str) -> None:
        self._control, its = socket.socketpair()
        command = [sys.executable, "-m", "baton_shim.session.zygote", str(its.fileno()), *libraries]
        variables = environment({"BATON_SESSION": MARK})
        self.process = subprocess.Popen(command, env=variables, cwd="/", pass_fds=[its.fileno()])
        its.close()
        assert next(line for line in self._control.makefile() if not line.startswith("loading ")) == "ready\n"

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """The process id."""
        connection, its = socket.socketpair()
        with connection:
            with its:
                socket.send_fds(self._control, [b"!"], [its.fileno()])
            connection.sendall(b"!")  # no control groups
            pid = int.from_bytes(connection.recv(4), sys.byteorder)
            socket.send_fds(connection, [msgpack.packb(request)], descriptors)
        return pid

    def close(self) -> None:
        self._control.close()
        self.process.wait()


def environment(variables: dict[str, str]) -> dict[str, str]:
    """This process's, with these variables, for processes that import the same packages from any folder.

    In a test, ipykernel would not watch the file descriptors of output.
    """
    paths = [str(Path(baton_shim.__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    path = os.pathsep.join(os.path.abspath(path) for path in paths if path)
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return {**own, **variables, "PYTHONPATH": path}


def read_memory(pid: int, address: int, count: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        data = bytearray()
        while len(data) < count:
            part = memory.read(count - len(data))
            assert part
            data += part
        return bytes(data)


def part_of_stream(pid: int, part: dict[str, Any]) -> bytes:
    """The part is in the message, or in the kernel's memory."""
    (kind, content), *_ = part.items()
    return content if kind == "here" else read_memory(pid, content["address"], content["bytes"])


class Mover:
    """The last bytes of each segment at both ends."""

    def __init__(self) -> None:
        self.segments: dict[int, bytes] = {}
        self.bytes_moved = 0

    def move(self, pid: int, state: dict[str, Any]) -> tuple[dict[str, Any], int]:
        file = os.memfd_create("state")
        stream = b"".join(part_of_stream(pid, part) for part in state["stream"])
        offset = os.write(file, stream)
        segments = []
        for segment in state["segments"]:
            number, size = segment["number"], segment["bytes"]
            content = read_memory(pid, segment["address"], size) if size else b""
            patches = []
            if size and (segment["fresh"] or self.segments.get(number) != content):
                offset = -(-offset // 4096) * 4096
                os.pwrite(file, content, offset)
                patches.append({"offset": 0, "source": {"offset": offset, "bytes": size}})
                offset += size
                self.bytes_moved += size
            self.segments[number] = content
            if patches or segment["fresh"]:
                segments.append({"number": number, "bytes": size, "fresh": segment["fresh"], "patches": patches})
        for number in state["dropped_segments"]:
            self.segments.pop(number, None)
        delta = {
            "messages": state["messages"],
            "stream": {"offset": 0, "bytes": len(stream)},
            "segments": segments,
            "dropped_segments": state["dropped_segments"],
        }
        return delta, file


class Kernel:
    """The notebook kernel's process and its client."""

    def __init__(self, folder: Path, shim: Socket, variables: dict[str, str]) -> None:
        name = folder / f"k{time.monotonic_ns()}"  # also of sockets: another process may take a free port first
        self.manager = KernelManager(connection_file=f"{name}.json", transport="ipc", ip=str(name))
        module = "baton_shim.notebook.start"
        self.manager._kernel_spec = KernelSpec(
            argv=[sys.executable, "-m", module, "-f", "{connection_file}", "--HistoryManager.hist_file=:memory:"],
            display_name=module,
            language="python",
        )
        variables = {**variables, "JPY_PARENT_PID": str(os.getpid()), "BATON_SHIM_SOCKET": str(shim.path)}
        self.manager.start_kernel(env=environment(variables), cwd=str(folder))
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()

    def ready(self) -> None:
        self.client.wait_for_ready(timeout=PATIENCE)

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.process.pid)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@dataclass
class Cell:
    """What a client saw of one cell."""

    reply: dict[str, Any]
    messages: list[tuple[str, dict[str, Any]]]
    remote: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """What the session published; in the notebook it is between `execute_input` and `idle`."""

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [content for name, content in self.messages + self.remote if name == kind]

    def text(self, stream: str = "stdout") -> str:
        return "".join(content["text"] for content in self.all("stream") if content["name"] == stream)

    @property
    def result(self) -> str | None:
        results = self.all("execute_result")
        assert len(results) <= 1
        return results[0]["data"]["text/plain"] if results else None

    @property
    def error(self) -> str:
        (error,) = self.all("error")
        assert error["ename"] == self.reply["ename"]
        return f"{error['ename']}: {error['evalue']}"

    @property
    def traceback(self) -> str:
        import re

        (error,) = self.all("error")
        return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error["traceback"]))


class Baton:
    """Notebook kernel, session kernel, and the stand-in between them."""

    def __init__(self, folder: Path, zygote: Zygote, cell_bytes: int | None = None) -> None:
        """With `cell_bytes`, memory beyond that is deferred."""
        self.folder = folder
        self.zygote = zygote
        self.home = Socket(folder / "home")
        extra = {} if cell_bytes is None else {"BATON_CELL_BYTES": str(cell_bytes)}
        self.notebook = Kernel(folder, self.home, extra)
        self.hello = self.home.accept()
        self.notebook.ready()
        self.session: Session | None = None
        self.remote: list[tuple[str, dict[str, Any]]] = []
        self.calls: list[dict[str, Any]] = []
        self.question = 0
        self.asked: list[list[str]] = []
        """Names that cells looked up and were not given, one list for each request."""
        self.before_names: Callable[[], None] = lambda: None
        self.before_finish: Callable[[], object] = lambda: None
        self.fail_with: dict[str, Any] | None = None
        self.follow = threading.Event()
        """While cleared, deferred state does not arrive."""
        self.follow.set()
        self.told_of_loss = threading.Event()
        self.follow_ups = 0
        self.followed_up = threading.Event()
        self.seen: list[tuple[str, dict[str, Any]]] = []
        """Those of the present cell."""
        self.hold = threading.Event()
        """While set, the stand-in answers no call."""
        self.from_home: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self.trouble: list[BaseException] = []
        self.threads = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._serve, daemon=True),
        ]
        for thread in self.threads:
            thread.start()

    # Verbs for tests.

    def run(
        self,
        code: str,
        answers: list[str] | None = None,
        interrupt_when: Callable[[], bool] | None = None,
        **options: Any,
    ) -> Cell:
        client = self.notebook.client
        self.remote.clear()
        options.setdefault("allow_stdin", answers is not None)
        request = client.execute(code, **options)
        messages = self.seen = []
        deadline = time.monotonic() + PATIENCE
        idle = False
        interrupted = interrupt_when is None
        while not idle:
            assert time.monotonic() < deadline, (messages, self.remote, self.trouble)
            assert not self.trouble, self.trouble
            if answers and client.stdin_channel.msg_ready():
                question = client.get_stdin_msg(timeout=PATIENCE)
                self.questions = [*getattr(self, "questions", []), question["content"]]
                client.input(answers.pop(0))
            if not interrupted and interrupt_when is not None and interrupt_when():
                os.kill(self.notebook.pid, signal.SIGINT)
                interrupted = True
            try:
                message = client.get_iopub_msg(timeout=0.05)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "status":
                idle = message["content"]["execution_state"] == "idle"
            else:
                messages.append((message["msg_type"], message["content"]))
        reply = client.get_shell_msg(timeout=PATIENCE)
        while reply["parent_header"].get("msg_id") != request:
            reply = client.get_shell_msg(timeout=PATIENCE)
        return Cell(reply["content"], messages, list(self.remote))

    def value(self, expression: str) -> str:
        """How the notebook kernel shows an expression's value, without a separate cell."""
        cell = self.run("", silent=True, store_history=False, user_expressions={"value": expression})
        answer = cell.reply["user_expressions"]["value"]
        assert answer["status"] == "ok", answer
        return str(answer["data"]["text/plain"])

    def interrupt(self) -> None:
        os.kill(self.notebook.pid, signal.SIGINT)

    def remote_text(self) -> str:
        return "".join(content["text"] for kind, content in self.remote if kind == "stream")

    def end_proxy_after(self, last: str) -> None:
        """The notebook's connection closes with this message, which it receives, but cannot answer."""
        send, stream = self.home.send, self.home.stream
        assert stream is not None

        def send_until(name: str, body: dict[str, Any], file: int | None = None) -> None:
            if name == last:
                stream.shutdown(socket.SHUT_RD)
            send(name, body, file)
            if name == last:
                stream.shutdown(socket.SHUT_WR)
                raise EOFError

        self.home.send = send_until  # type: ignore[method-assign]

    def lose_session(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None

    def close(self) -> None:
        self.notebook.close()
        self.lose_session()
        self.home.close()

    # The role of the Rust side.

    def _listen(self) -> None:
        try:
            while True:
                self.from_home.put(self.home.receive())
        except (EOFError, OSError):
            self.from_home.put(("end", {}))

    def _serve(self) -> None:
        while True:
            name, body = self.from_home.get()
            if name == "end":
                return
            if name != "run":
                continue
            self.calls.append(body)
            while name == "run":
                try:
                    again = self._serve_call(body)
                except (EOFError, OSError):
                    return
                except BaseException as trouble:
                    self.trouble.append(trouble)
                    return
                name, body = ("run", again) if again else ("", {})

    def _serve_call(self, run: dict[str, Any]) -> dict[str, Any] | None:
        call = run["call"]
        if self.hold.is_set():
            while True:
                name, body = self.from_home.get(timeout=PATIENCE)
                if name == "cancel":
                    self.held_cancels = getattr(self, "held_cancels", 0) + 1
                if name == "run":
                    return body
        if self.fail_with is not None:
            self.home.send("released", {"call": call})
            self.home.send("failed", {"call": call, **self.fail_with})
            return None
        state = run["state"]
        if state["messages"] > 0 and self.session is None:
            self.home.send("released", {"call": call})
            self.home.send("state_wanted", {"call": call})
            name, body = self.from_home.get(timeout=PATIENCE)
            if name in ("cancel", "withdraw"):
                finished = {"outcome": "cancelled", "error": None, "delta": None, "table_kept": False}
                self.home.send("finished", {"call": call, **finished})
                return None
            assert name == "state"
            state = body["state"]
        if state["messages"] == 0:
            self.lose_session()
            self.session = Session(self.zygote, self.folder)
            self.session.accept()
            self.mover = Mover()
        session = self.session
        assert session is not None
        delta, file = self.mover.move(self.notebook.pid, state)
        self.home.send("released", {"call": call})
        parts = ("message_id", "code", "silent", "allow_stdin", "execution_count")
        session.send("run", {part: run[part] for part in parts} | {"delta": delta}, file)
        session.send("begin", {"message_id": run["message_id"]})
        os.close(file)
        from_away: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        started = False
        listener = threading.Thread(target=self._listen_away, args=(session, from_away), daemon=True)
        listener.start()
        while True:
            self._pump_home(session, call)
            try:
                name, body = from_away.get(timeout=0.02)
            except queue.Empty:
                continue
            if name == "published":
                self._pass_on(body["output"], run)
            if name == "refused":
                self.home.send("failed", {"call": call, "outcome": "refused", "error": body["error"]})
                if started:
                    self.lose_session()
                return None
            if name == "started":
                started = True
            if name == "input_wanted":
                self.question = body["question"]
                self.home.send("input_wanted", {"call": call, "prompt": body["prompt"], "password": body["password"]})
            if name == "names_wanted":
                self.asked.append(body["names"])
                self.before_names()
                self.home.send("names_wanted", {"call": call, "names": body["names"]})
            if name == "finished":
                break
            if name == "end":
                error = {
                    "name": "GpuServiceError",
                    "value": "The session died",
                    "traceback": [],
                    "hint": "run it again",
                }
                self.home.send("failed", {"call": call, "outcome": "worker_lost", "error": error})
                self.lose_session()
                return None
        self.before_finish()
        deferred_bytes = body["deferred_bytes"]
        delta, file = self.mover.move(session.pid, body["state"])
        session.send("released", {"message_id": run["message_id"]})
        finished = {"call": call, "outcome": body["outcome"], "error": body["error"], "delta": delta}
        self.home.send("finished", finished, file)
        os.close(file)
        while True:
            name, body = self.from_home.get(timeout=PATIENCE)
            if name == "run":
                return body
            if name == "applied":
                self.applied = body
                if body["error"] is not None:
                    self.home.send("undone", {"call": call})
                return self._serve_deferred(session, call) if deferred_bytes else None

    def _serve_deferred(self, session: Session, call: int) -> dict[str, Any] | None:
        """Sends the deferred state, or returns the next call if one begins first."""
        try:
            name = "published"  # by threads, after their cell
            while name == "published":
                name, body = session.receive()
            assert name == "deferred_ready"
        except (EOFError, OSError):
            self.session = None
        told = False
        while True:
            if self.session is not None and self.follow.is_set() and not told:
                told = True
                known = dict(self.mover.segments)
                delta, file = self.mover.move(session.pid, body["state"])
                self.home.send("deferred_state", {"call": call, "delta": delta}, file)
                os.close(file)
            try:
                name, said = self.from_home.get(timeout=0.01)
            except queue.Empty:
                name, said = "", {}
            if self.session is None and not told:
                error = {"name": "SessionDied", "value": "The session died", "traceback": [], "hint": "again"}
                self.home.send("deferred_lost", {"call": call, "error": error})
                self.told_of_loss.set()
                return said if name == "run" else None
            if name == "applied":
                self.follow_ups += said["error"] is None
                self.followed_up.set()
                return None
            if name in ("run", "end"):
                if told:
                    self.mover.segments = known
                return said if name == "run" else None

    def _listen_away(self, session: Session, into: queue.Queue[tuple[str, dict[str, Any]]]) -> None:
        try:
            while True:
                message = session.receive()
                into.put(message)
                if message[0] in ("finished", "refused"):
                    return
        except (EOFError, OSError):
            into.put(("end", {}))

    def _pass_on(self, output: dict[str, Any], run: dict[str, Any]) -> None:
        content = json.loads(output["content"])
        assert output["kind"] in OUTPUTS, content
        if run["captured"]:
            self.home.send("publish", {"call": run["call"], "output": output})
        else:
            self.remote.append((output["kind"], content))

    def _pump_home(self, session: Session, call: int) -> None:
        while not self.from_home.empty():
            name, body = self.from_home.get()
            if name == "cancel":
                os.kill(session.pid, signal.SIGINT)
            elif name == "input":
                session.send("input", {"question": self.question, "value": body["value"]})
            elif name == "names":
                delta, file = self.mover.move(self.notebook.pid, body["state"])
                self.home.send("released", {"call": call})
                session.send("names", {"message_id": "", "delta": delta}, file)
                os.close(file)


@pytest.fixture(scope="session")
def zygote(request: pytest.FixtureRequest) -> Iterator[Zygote]:
    zygote = Zygote(*getattr(request, "param", ()))
    yield zygote
    zygote.close()


@pytest.fixture
def baton_away(tmp_path: Path, zygote: Zygote) -> Iterator[Baton]:
    """All memory that may be deferred is."""
    both = Baton(tmp_path, zygote, cell_bytes=0)
    yield both
    both.follow.set()
    both.close()
    assert not both.trouble


@pytest.fixture
def baton(tmp_path: Path, zygote: Zygote) -> Iterator[Baton]:
    both = Baton(tmp_path, zygote)
    yield both
    both.close()
    assert not both.trouble
