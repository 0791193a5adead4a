"""Requests of clients to a kernel, in an ordinary cell and under `%%gpu`: the results are the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq
from end_to_end import Kernel, wait_until
from end_to_end.background import Gate
from end_to_end.kernel import kernel_manager
from end_to_end.results import Result
from jupyter_client.session import Session

BOTH = pytest.mark.parametrize("front", ["", "%%gpu\n"], ids=["ordinary", "gpu"])


def ask(kernel: Kernel, kind: str, **content: Any) -> dict[str, Any]:
    """The content of the reply on shell."""
    cell = kernel.send(kernel.client.session.msg(kind, content))
    return dict(cell.finish().reply)


def waiting_code(front: str, flag: object) -> str:
    wait = f"while not os.path.exists({str(flag)!r}):\n    time.sleep(0.01)"
    return f"{front}import os, time\nprint('begun', flush=True)\n{wait}"


# ---- execute_request and its fields


@BOTH
def test_user_expressions_see_what_the_cell_did(kernel: Kernel, front: str) -> None:
    result = kernel.run(f"{front}number = 41", user_expressions={"good": "number + 1", "bad": "missing"}).ok()
    answers = result.reply["user_expressions"]
    assert answers["good"]["data"] == {"text/plain": "42"}
    assert answers["bad"]["ename"] == "NameError"


@BOTH
def test_silent(kernel: Kernel, front: str) -> None:
    count = kernel.run("pass").reply["execution_count"]
    assert kernel.run(f"{front}number = 5\nnumber", silent=True).published == []
    assert kernel.evaluate("number") == 5
    assert kernel.run("pass").reply["execution_count"] == count + 1


@BOTH
def test_store_history(kernel: Kernel, front: str) -> None:
    count = kernel.run(f"{front}'kept'").reply["execution_count"]
    kernel.run(f"{front}'not kept'", store_history=False).ok()
    assert kernel.run("pass").reply["execution_count"] == count + 1
    found = ask(kernel, "history_request", hist_access_type="tail", n=2, raw=True, output=False, unique=False)
    assert [entry[2] for entry in found["history"]] == [f"{front}'kept'", "pass"]


@BOTH
def test_an_error_aborts_what_was_sent_behind_it(kernel: Kernel, front: str, gate: Gate) -> None:
    failing = f"{front}{gate.closed()}1 / 0"
    cells = [kernel.begin(failing, stop_on_error=True), kernel.begin(f"{front}1"), kernel.begin("2")]
    gate.open()
    replies = [cell.finish().reply["status"] for cell in cells]
    assert replies == ["error", "aborted", "aborted"]


@BOTH
def test_without_stop_on_error_the_next_cells_run(kernel: Kernel, front: str) -> None:
    cells = [kernel.begin(f"{front}1 / 0"), kernel.begin(f"{front}1"), kernel.begin("2")]
    assert [cell.finish().reply["status"] for cell in cells] == ["error", "ok", "ok"]


@BOTH
def test_display_updates_from_either_kind_of_cell(kernel: Kernel, front: str) -> None:
    kernel.run(f"{front}from IPython.display import display, update_display\ndisplay(1, display_id='shown')").ok()
    for update in ("", "%%gpu\n"):
        result = kernel.run(
            f"{update}from IPython.display import update_display\nupdate_display(2, display_id='shown')"
        )
        (content,) = [c for c in result.of("update_display_data") if c["transient"]["display_id"] == "shown"]
        assert content["data"] == {"text/plain": "2"}


@BOTH
def test_clear_output_waits(kernel: Kernel, front: str) -> None:
    result = kernel.run(
        f"{front}from IPython.display import clear_output\nprint(1)\nclear_output(wait=True)\nprint(2)"
    ).ok()
    assert result.outputs == [("stdout", "1\n"), ("clear_output", "wait"), ("stdout", "2\n")]


# ---- other requests


def test_completion_inspection_and_is_complete_of_a_gpu_cell(kernel: Kernel) -> None:
    kernel.run("number_of_students = 3").ok()
    code = "%%gpu\nnumber_of"
    found = ask(kernel, "complete_request", code=code, cursor_pos=len(code))
    assert (found["matches"], found["cursor_start"]) == (["number_of_students"], len("%%gpu\n"))
    code = "%%gpu\nzip"
    assert (
        "zip" in ask(kernel, "inspect_request", code=code, cursor_pos=len(code), detail_level=0)["data"]["text/plain"]
    )
    assert ask(kernel, "is_complete_request", code="%%gpu\nx = (")["status"] == "incomplete"
    assert ask(kernel, "is_complete_request", code="%%gpu\nx = 1\n\n")["status"] == "complete"


@BOTH
def test_usage_and_kernel_info_while_a_cell_runs(kernel: Kernel, front: str) -> None:
    """JupyterLab, and a server that culls, send requests on control all the time."""
    flag = kernel.place.work / f"usage-{bool(front)}"
    cell = kernel.begin(waiting_code(front, flag))
    cell.wait_for_text("begun")
    assert kernel.ask_control("usage_request")["kernel_memory"] > 10 << 20
    assert kernel.ask_control("kernel_info_request")["implementation"] == "ipython"
    assert not cell.done
    flag.touch()
    cell.finish().ok()


def test_unknown_requests_and_fields_do_no_harm(kernel: Kernel) -> None:
    request = kernel.client.session.msg("request_of_tomorrow", {"field": 1})
    request["header"]["field_of_tomorrow"] = [1]
    kernel.client.shell_channel.send(request)
    request = kernel.client.session.msg("execute_request", {"code": "%%gpu\nprint(1)", "field_of_tomorrow": {}})
    request["header"]["field_of_tomorrow"] = [1]
    request["metadata"]["cellId"] = "a"
    result = kernel.send(request).finish().ok()
    parents = {str(message["parent_header"]["field_of_tomorrow"]) for message in result.published}
    assert (result.stdout, parents) == ("1\n", {"[1]"})


@BOTH
def test_a_subshell_works_while_a_cell_runs(kernel: Kernel, front: str) -> None:
    flag = kernel.place.work / f"subshell-{bool(front)}"
    cell = kernel.begin(waiting_code(front, flag))
    cell.wait_for_text("begun")
    subshell = kernel.ask_control("create_subshell_request")["subshell_id"]
    assert kernel.ask_control("list_subshell_request")["subshell_id"] == [subshell]
    assert kernel.on_subshell(subshell, "print('beside')").finish().ok().stdout == "beside\n"
    behind = kernel.on_subshell(subshell, "%%gpu\nprint('behind')")
    flag.touch()
    cell.finish().ok()
    assert behind.finish().ok().stdout == "behind\n"
    kernel.ask_control("delete_subshell_request", {"subshell_id": subshell})


# ---- several clients


def test_a_client_that_reads_nothing_stops_nobody_and_sees_the_end(
    new_kernel: Callable[..., Kernel], gate: Gate
) -> None:
    kernel = new_kernel()
    with zmq.Context() as context, context.socket(zmq.SUB) as stuck:
        stuck.rcvhwm, stuck.rcvbuf = 1, 64 << 10
        stuck.subscribe(b"")
        stuck.connect(f"tcp://127.0.0.1:{kernel.manager.iopub_port}")
        wait_until(lambda: kernel.run("pass").ok() and stuck.poll(0), "it has subscribed")
        for front in ("", "%%gpu\n"):
            # The other client is never so far behind that the proxy has to drop its messages. Each text and its end are
            # written at once, so that they are one message.
            parts, gates = [], []
            for _ in range(4):
                parts.append(f"for _ in range(150): show({{'text/plain': 'x' * 40_000}})\n{gate.closed()}")
                gates.append(gate.path)
            cell = kernel.begin(
                f"{front}from IPython.display import publish_display_data as show\nprint('begin\\n', end='')\n"
                f"{''.join(parts)}print('end\\n', end='')"
            )
            for number, path in enumerate(gates, 1):
                cell.wait_for(lambda result, shown=150 * number: len(result.displays) >= shown, "displays come")
                path.touch()
            result = cell.finish().ok()
            assert (len(result.displays), result.stdout) == (600, "begin\nend\n")
            words = words_until_idle(kernel, stuck, result)
            assert words[:2] == ["busy", "execute_input"]
            assert {"begin\n", "end\n"} <= set(words)
            assert any("displays were left out here" in word for word in words)
        status = Path(f"/proc/{kernel.proxy.pid}/status").read_text()
        peak, program = (int(*re.findall(rf"{name}:\s+(\d+) kB", status)) for name in ("VmHWM", "RssFile"))
        assert peak - program < 40 << 10  # of the 48 MB that were sent to it


def words_until_idle(kernel: Kernel, socket: Any, seen: Result) -> list[str]:
    """The messages about a cell that another client gets: their kinds, with the states and texts in them."""
    session = Session(key=kernel.client.session.key)
    cell = seen.published[0]["parent_header"]["msg_id"]
    words, kernels = [""], set()
    while words[-1] != "idle":
        assert socket.poll(120_000), words
        _, message = session.recv(socket)
        if message["parent_header"].get("msg_id") == cell:
            content = message["content"]
            words.append(content.get("execution_state") or content.get("text") or message["msg_type"])
            kernels.add(message["header"]["session"])
    assert len(kernels) == 1, "JupyterLab drops messages of another kernel session"
    return words[1:]


# ---- the debugger


class Debugger:
    """A client that sends DAP over control, as JupyterLab does."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._sequence = 0
        self.ask("initialize", clientID="test", adapterID="", pathFormat="path", linesStartAt1=True)
        self.ask("attach")

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        self._sequence += 1
        request = {"type": "request", "seq": self._sequence, "command": command, "arguments": arguments}
        reply = self.kernel.ask_control("debug_request", request)
        assert reply["success"], reply
        return dict(reply.get("body") or {})

    @property
    def stopped(self) -> list[dict[str, Any]]:
        return [event["body"] for event in self.kernel.debug_events if event["event"] == "stopped"]

    def stop_at(self, code: str, line: int) -> None:
        path = self.ask("dumpCell", code=code)["sourcePath"]
        self.ask("setBreakpoints", breakpoints=[{"line": line}], source={"path": path}, sourceModified=False)
        self.ask("configurationDone")


def test_breakpoints(new_kernel: Callable[..., Kernel]) -> None:
    """Breakpoints stop an ordinary cell; for a `%%gpu` cell a message explains where debugging works."""
    kernel = new_kernel()
    debugger = Debugger(kernel)
    code = "first = 1\nsecond = 2"
    debugger.stop_at(code, 2)
    cell = kernel.begin(code)
    cell.wait_for(lambda _: debugger.stopped, "it stops")
    assert not cell.done
    debugger.ask("continue", threadId=debugger.stopped[0]["threadId"])
    cell.finish().ok()
    code = "%%gpu\nfirst = 3\nprint(first)"
    debugger.stop_at(code, 3)
    result = kernel.run(code).ok()
    assert result.stdout == "3\n"
    assert "Breakpoints do not stop a %%gpu cell" in result.stderr
    debugger.ask("disconnect", restart=False, terminateDebuggee=False)
    assert kernel.run("first").ok().value == "3"


# ---- transports, restarts, ends


def test_sockets_instead_of_ports(place: Any) -> None:
    kernel = Kernel.start(place, transport="ipc")
    try:
        assert kernel.run("1 + 1").ok().value == "2"
        assert kernel.gpu("print('there')\n1 + 2").ok().outputs == [("stdout", "there\n"), ("execute_result", "3")]
    finally:
        kernel.shutdown()


@pytest.mark.parametrize("settings", [{"signature_scheme": "hmac-sha512"}, {"key": b""}], ids=["sha512", "unsigned"])
def test_other_signatures(place: Any, settings: dict[str, Any]) -> None:
    """Clients refuse messages that are signed with another scheme than they requested."""
    manager = kernel_manager(session=Session(**settings))
    manager.start_kernel(env=place.environment, cwd=str(place.work))
    kernel = Kernel(manager, place)
    try:
        assert kernel.gpu("print('there')").ok().stdout == "there\n"
    finally:
        kernel.shutdown()


@BOTH
def test_a_restart_while_a_cell_runs(new_kernel: Callable[..., Kernel], front: str) -> None:
    kernel = new_kernel()
    kernel.begin(waiting_code(front, "/nowhere")).wait_for_text("begun")
    kernel.restart()
    assert kernel.evaluate("'os' in dir()") is False
    assert kernel.gpu("print('again')").ok().stdout == "again\n"


@BOTH
def test_a_shutdown_while_a_cell_runs(new_kernel: Callable[..., Kernel], front: str) -> None:
    kernel = new_kernel()
    kernel.begin(waiting_code(front, "/nowhere")).wait_for_text("begun")
    proxy = kernel.proxy
    kernel.shutdown()
    wait_until(lambda: not proxy.is_running(), "the kernel ended")


@BOTH
@pytest.mark.parametrize("death", ["import ctypes; ctypes.string_at(0)", "import os; os._exit(9)"])
def test_a_kernel_that_dies_is_started_again(new_kernel: Callable[..., Kernel], front: str, death: str) -> None:
    """Under `%%gpu` only the session dies, and the notebook keeps its variables."""
    kernel = new_kernel()
    kernel.run("kept = 1").ok()
    kernel.gpu("print(kept)").ok()
    if front:
        assert kernel.gpu(death).error is not None
        assert kernel.gpu("kept").ok().value == "1"
    else:
        process = kernel.manager.provisioner.process
        kernel.client.execute(death)
        wait_until(lambda: process.poll() is not None, "Jupyter sees the end")
        kernel.restart()
        assert kernel.gpu("'kept' in dir()").ok().value == "False"
