"""The kernel as a process: bad connection files, foreign traffic, and what remains when something dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import zmq
from end_to_end import Kernel, Place, wait_until
from end_to_end.kernel import PORT_NAMES, kernel_manager
from end_to_end.leftovers import Leftovers
from end_to_end.ports import free_ports
from end_to_end.service import BINARY
from jupyter_client.connect import write_connection_file
from jupyter_client.session import Session

STARTS = int(os.environ.get("BATON_TEST_STARTS", "8"))


@pytest.fixture
def user() -> Iterator[Place]:
    """A user of this test only, so that everything it leaves is noticed."""
    place = Place.create()
    yield place
    assert not place.close()


@pytest.fixture
def connection_file(user: Place) -> Path:
    ports = dict(zip(PORT_NAMES, free_ports(len(PORT_NAMES)), strict=True))
    path, _ = write_connection_file(str(user.folder / "connection.json"), **ports)
    return Path(path)


def run_kernel(place: Place, connection_file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program as Jupyter's clients start it; it is expected to give up at once."""
    command = [sys.executable, "-m", "baton_shim", "-f", str(connection_file), *arguments]
    return subprocess.run(command, env=place.environment, capture_output=True, text=True, timeout=60, check=False)


def change(connection_file: Path, **values: object) -> None:
    connection_file.write_text(json.dumps(json.loads(connection_file.read_text()) | values))


def check_refused(place: Place, connection_file: Path, *words: str) -> None:
    result = run_kernel(place, connection_file)
    assert result.returncode not in (0, -signal.SIGSEGV, 101), result
    assert all(word in result.stderr for word in words), result.stderr
    wait_until(lambda: not place.processes(), "nothing is left")


# ---- starting


@pytest.mark.parametrize("channel", PORT_NAMES)
def test_a_busy_port(user: Place, connection_file: Path, channel: str) -> None:
    port = json.loads(connection_file.read_text())[channel]
    with socket.create_server(("127.0.0.1", port)):
        check_refused(user, connection_file, str(port))


def test_an_unknown_python(user: Place, connection_file: Path) -> None:
    command = [str(BINARY), "kernel", "--python", "/no/such/python", "-f", str(connection_file)]
    result = subprocess.run(command, env=user.environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode != 0
    assert "/no/such/python" in result.stderr


def test_a_connection_file_that_is_not_there(user: Place) -> None:
    check_refused(user, user.folder / "missing.json", "missing.json")


def test_a_connection_file_that_is_not_one(user: Place, connection_file: Path) -> None:
    connection_file.write_text("{")
    check_refused(user, connection_file, "connection.json is not a usable connection file", "not a JSON object")


def test_encryption_is_refused_clearly(user: Place, connection_file: Path) -> None:
    change(connection_file, curve_publickey="a" * 40, curve_secretkey="b" * 40)
    check_refused(user, connection_file, "curve_", "hint: ")


def test_switched_off(new_kernel: Callable[..., Kernel]) -> None:
    kernel = new_kernel(BATON_DISABLE="1")
    assert kernel.run("1 + 1").ok().value == "2"
    assert "ipykernel_launcher" in " ".join(kernel.proxy.cmdline())


def test_arguments_reach_the_notebook_kernel(user: Place) -> None:
    manager = kernel_manager()
    arguments = ["--HistoryManager.hist_file=:memory:", "--Kernel._execute_sleep=0.25"]
    manager.start_kernel(env=user.environment, cwd=str(user.work), extra_arguments=arguments)
    kernel = Kernel(manager, user)
    try:
        assert kernel.evaluate("get_ipython().history_manager.hist_file") == ":memory:"
        assert kernel.evaluate("get_ipython().kernel._execute_sleep") == 0.25
    finally:
        kernel.shutdown()


# ---- foreign traffic


def test_a_client_with_a_wrong_key_is_ignored(kernel: Kernel) -> None:
    stranger = Session(key=b"not the key", signature_scheme="hmac-sha256")
    with zmq.Context() as context, context.socket(zmq.DEALER) as shell:
        shell.linger = 0
        shell.connect(f"tcp://127.0.0.1:{kernel.manager.shell_port}")
        request = stranger.msg("execute_request", {"code": "intruded = 1", "silent": False})
        stranger.send(shell, request)
        assert kernel.evaluate("'intruded' in dir()") is False
        assert not shell.poll(0)


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP"),
        pytest.param(bytes(64), id="zeros"),
        pytest.param(b"\xff" + b"\x00" * 8 + b"\x7f" + b"\x03\x00NULL" + bytes(48) + b"\x02" + b"\xff" * 8, id="size"),
    ],
)
@pytest.mark.parametrize("channel", PORT_NAMES)
def test_malformed_bytes(kernel: Kernel, channel: str, garbage: bytes) -> None:
    with ExitStack() as open_:
        for _ in range(3):
            stranger = open_.enter_context(socket.create_connection(("127.0.0.1", getattr(kernel.manager, channel))))
            stranger.sendall(garbage)
        assert kernel.run("2 + 2").ok().value == "4"
    assert kernel.gpu("2 + 3").ok().value == "5"


# ---- ending


def test_nothing_is_left_after_shutdown(user: Place) -> None:
    before = sorted(path.name for path in (user.folder / "run").rglob("*"))
    kernel = Kernel.start(user)
    kernel.run("pass").ok()
    kernel.shutdown()
    wait_until(lambda: not user.processes(), "all processes ended")
    left = sorted(path.name for path in (user.folder / "run").rglob("*") if path.name not in ("jupyter", "baton"))
    assert left == before


@pytest.mark.timeout(600 + 5 * STARTS)
def test_many_starts_and_stops_leave_nothing(user: Place) -> None:
    """Set `BATON_TEST_STARTS=200` for more of them."""
    before = sorted((user.folder / "run").rglob("*"))
    for number in range(STARTS):
        kernel = Kernel.start(user)
        kernel.run("pass").ok()
        if number % 2:
            kernel.proxy.kill()
        kernel.shutdown()
        wait_until(lambda: not user.processes(), "all processes ended")
    kernel = Kernel.start(user)  # it cleans up after those that were killed
    kernel.shutdown()
    wait_until(lambda: not user.processes(), "all processes ended")
    left = set((user.folder / "run").rglob("*")) - set(before)
    assert {path for path in left if "jupyter" not in path.parts and path.name not in ("jupyter", "baton")} == set()


def test_a_killed_proxy_takes_the_kernel_down(user: Place) -> None:
    kernel = Kernel.start(user)
    kernel.proxy.kill()
    wait_until(lambda: not user.processes(), "all processes ended")
    kernel.shutdown()


def test_a_kernel_that_ends_takes_the_proxy_down_with_its_status(user: Place) -> None:
    kernel = Kernel.start(user)
    kernel.client.execute("import os; os._exit(7)")
    process = kernel.manager.provisioner.process
    wait_until(lambda: process.poll() is not None, "the proxy ended")
    assert process.returncode == 7
    kernel.shutdown()


def test_a_killed_client_takes_all_down(user: Place) -> None:
    """The parent watch: a crashed nbclient or server leaves no kernel."""
    code = (
        "import os, sys\nfrom jupyter_client.manager import KernelManager\n"
        "manager = KernelManager(kernel_name='baton', transport='ipc')\nmanager.start_kernel()\n"
        "client = manager.blocking_client()\nclient.start_channels()\nclient.wait_for_ready(timeout=120)\n"
        "print('ready', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=user.environment,
        cwd=user.work,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        client.kill()
    wait_until(lambda: not user.processes(), "all processes ended")


def test_the_session_ends_with_its_notebook(kernel: Kernel, new_kernel: Callable[..., Kernel]) -> None:
    other = new_kernel()
    session = other.session_pid
    assert session != kernel.session_pid
    other.shutdown()
    wait_until(lambda: not psutil.pid_exists(session), "the session ended")


def test_a_restart_keeps_the_connection_file(new_kernel: Callable[..., Kernel]) -> None:
    kernel = new_kernel()
    kernel.run("x = 1").ok()
    port = kernel.manager.shell_port
    kernel.restart()
    assert kernel.manager.shell_port == port
    assert kernel.evaluate("'x' in dir()") is False


def test_the_end_of_a_run_sees_what_has_no_environment(leftovers: Leftovers) -> None:
    """Such as the process that keeps a sandbox open."""
    said = subprocess.run(
        ["sh", "-c", "env -i sleep 600 >/dev/null & echo $!"], stdout=subprocess.PIPE, text=True, check=True
    )
    left = psutil.Process(int(said.stdout))
    assert left in leftovers.processes()
    left.kill()
    wait_until(lambda: left not in leftovers.processes(), "it has ended")
