"""Cells can do what they need in each sandbox, and a descriptor that is left open by mistake opens nothing outside."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from end_to_end import Kernel, Service, wait_until
from end_to_end.restricted import WITHOUT_USER_NAMESPACES

pytestmark = pytest.mark.every_user

IN_OTHER_PROCESSES = """
import multiprocessing, os
from multiprocessing import shared_memory
context = multiprocessing.get_context("fork")
with context.Pool(2) as pool:
    squares = pool.map(abs, [-1, -2, -3])
with context.Manager() as manager:
    shared = manager.list([1])
    shared.append(2)
    shared = list(shared)
memory = shared_memory.SharedMemory(create=True, size=1 << 20)
memory.buf[:5] = b"hello"
same = shared_memory.SharedMemory(memory.name)
said = bytes(same.buf[:5])
same.close()
memory.close()
memory.unlink()

import own
doubled = []
for way in ("spawn", "forkserver"):
    with multiprocessing.get_context(way).Pool(1) as pool:
        doubled += pool.map(own.double, [21])

import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=2)
batches = [batch.tolist() for [batch] in loader]
"""
WITH_FILES = """
import os, pathlib, shutil, stat, subprocess, tempfile, zipfile
pathlib.Path("copied.csv").write_text(pathlib.Path("data.csv").read_text())
shutil.copy2("data.csv", "copied-with-times.csv")
same_times = os.stat("copied-with-times.csv").st_mtime == os.stat("data.csv").st_mtime
shutil.copytree(".", os.path.join(tempfile.gettempdir(), "tree"))
script = pathlib.Path("script.sh")
script.write_text("#!/bin/sh\\necho ran")
script.chmod(0o755)
descriptor = os.open("script.sh", os.O_RDONLY)
os.fchmod(descriptor, 0o700)
os.utime(descriptor)
os.close(descriptor)
ran = subprocess.run(["./script.sh"], capture_output=True, text=True).stdout
os.makedirs("folder/deep")
os.rename("script.sh", "folder/deep/script.sh")
os.symlink("data.csv", "link.csv")
os.utime("link.csv", (1, 1), follow_symlinks=False)
os.chmod("link.csv", 0o640)
mode = oct(stat.S_IMODE(os.stat("data.csv").st_mode))
os.mkfifo(os.path.join(tempfile.gettempdir(), "pipe"))
with open(os.devnull, "w") as nothing:
    print("x", file=nothing)
os.urandom(4)
os.nice(1)
os.sched_setaffinity(0, os.sched_getaffinity(0))
sparse = zipfile.ZipFile("archive.zip", "w")
sparse.write("data.csv")
sparse.close()
"""


@pytest.mark.parametrize("start", ["forked", "fresh"])
@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock"])
def test_a_sandboxed_session_can_do_what_cells_need(
    sandbox: str, start: str, new_kernel: Callable[..., Kernel]
) -> None:
    service = Service.create()
    service.start_broker()
    service.start_worker(
        prefix=WITHOUT_USER_NAMESPACES if sandbox == "landlock" else [],
        BATON_WORKER_SANDBOX=sandbox,
        BATON_WORKER_FILES="mirror",
        BATON_WORKER_WARM_STARTS=str(start == "forked").lower(),
    )
    try:
        kernel = service.kernel(new_kernel)
        (service.place.work / "data.csv").write_text("a,b\n1,2\n")
        (service.place.work / "own.py").write_text("def double(number):\n    return 2 * number\n")
        # Only with bubblewrap, other programs find the mirror at the notebook's path, because it is mounted there.
        by_path = "f'{here}/data.csv'" if sandbox == "bubblewrap" else "'data.csv'"
        kernel.gpu(
            "import os, pathlib, subprocess, tempfile\n"
            "here = os.getcwd()\n"
            f"by_path = subprocess.run(['cat', {by_path}], capture_output=True, text=True).stdout\n"
            "pathlib.Path(here, 'result.txt').write_text('42')\n"
            "os.close(os.memfd_create('memory'))\n"
            "with tempfile.NamedTemporaryFile() as file:\n    file.write(bytes(1 << 20))\n"
            "home = pathlib.Path.home() / 'cache'\n"
            "home.write_text('x')\n"
        ).ok()
        assert kernel.evaluate("here, by_path") == (str(service.place.work), "a,b\n1,2\n")
        assert (service.place.work / "result.txt").read_text() == "42"
        kernel.gpu(IN_OTHER_PROCESSES).ok()
        assert kernel.evaluate("squares, shared, said") == ([1, 2, 3], [1, 2], b"hello")
        assert kernel.evaluate("doubled") == [42, 42]
        assert kernel.evaluate("batches") == [[0, 1], [2, 3], [4, 5], [6, 7]]
        kernel.gpu(WITH_FILES).ok()
        assert kernel.evaluate("same_times, ran, mode") == (True, "ran\n", "0o640")
        assert (service.place.work / "folder/deep/script.sh").stat().st_mode & 0o7777 == 0o700
        said = kernel.gpu("!echo from a shell; echo and an error >&2; exit 3").ok().stdout
        assert said.replace("\r", "") == "from a shell\nand an error\n"
        assert kernel.gpu("_exit_code").ok().value == "3"
        kernel.shutdown()
    finally:
        left = service.close()
    assert not left, f"Processes left behind: {left}"


IN_A_MIRROR = """
import os, pathlib
pathlib.Path("copied.csv").write_text(pathlib.Path("data.csv").read_text())
seen = os.path.exists(folder)
"""


@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock"])
def test_the_folders_of_a_worker_may_be_behind_links(
    service: Service, new_kernel: Callable[..., Kernel], sandbox: str
) -> None:
    """As systemd makes them for a `DynamicUser=`."""
    private, link = service.place.folder / "private/baton-worker", service.place.folder / "baton-worker"
    private.mkdir(parents=True)
    link.symlink_to(private)
    service.start_broker()
    service.start_worker(
        prefix=WITHOUT_USER_NAMESPACES if sandbox == "landlock" else [],
        BATON_WORKER_SANDBOX=sandbox,
        BATON_WORKER_FILES="mirror",
        BATON_WORKER_MIRRORS=str(link / "mirrors"),
        BATON_WORKER_CACHE=str(link / "chunks"),
    )
    (service.place.work / "data.csv").write_text("a,b")
    kernel = service.kernel(new_kernel)
    kernel.run(f"folder = {str(private / 'chunks')!r}").ok()
    kernel.gpu(IN_A_MIRROR).ok()
    assert (service.place.work / "copied.csv").read_text() == "a,b"
    # Landlock refuses to open files, not to ask for them.
    assert kernel.evaluate("seen") is (sandbox == "landlock")


WITH_A_NETWORK = """
import asyncio, os, socket, tempfile

def refused(family, place):
    try:
        socket.socket(family).connect(place)
    except OSError as error:
        return type(error).__name__

with socket.create_connection(("127.0.0.1", port), 100) as connection:
    greeting = connection.recv(5)
with socket.socket() as connection:  # one that waits for as long as it takes
    connection.connect(("127.0.0.1", port))
    greetings = greeting, connection.recv(5)

async def read():
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = await reader.readexactly(5)
    writer.close()
    return said

greetings += (await read(),)
nobody = refused(socket.AF_INET, ("127.0.0.1", closed))
others = refused(socket.AF_UNIX, path), refused(socket.AF_UNIX, "\\0" + name)
own = os.path.join(tempfile.gettempdir(), "own")
with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
    listener.bind(own)
    listener.listen(0)
    client.connect(own)
    client.sendall(b"hello")
    to_itself = listener.accept()[0].recv(5)
"""


@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock"])
def test_the_machines_network_opens_no_local_sockets(
    sandbox: str, new_kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    service = Service.create()
    service.start_broker()
    prefix = WITHOUT_USER_NAMESPACES if sandbox == "landlock" else []
    service.start_worker(prefix=prefix, BATON_WORKER_SANDBOX=sandbox, BATON_WORKER_NETWORK="host")
    path, name = str(tmp_path / "s"), secrets.token_hex(6)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # it does not listen, and no other program gets its port
        others = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
        for other, place in zip(others, (path, f"\0{name}"), strict=True):
            other.bind(place)
            other.listen()
        port, nowhere = server.getsockname()[1], closed.getsockname()[1]
        greeter = threading.Thread(target=greet, args=(server, 3))
        greeter.start()
        try:
            kernel = service.kernel(new_kernel)
            kernel.run(f"port, closed, path, name = {port}, {nowhere}, {path!r}, {name!r}").ok()
            kernel.gpu(WITH_A_NETWORK).ok()
            assert kernel.evaluate("greetings") == (b"hello",) * 3
            by_path = {"bubblewrap": "FileNotFoundError", "landlock": "PermissionError"}
            expected = ("ConnectionRefusedError", (by_path[sandbox], "PermissionError"))
            assert kernel.evaluate("nobody, others") == expected
            assert kernel.evaluate("to_itself") == b"hello"
            kernel.shutdown()
        finally:
            left = service.close()
            for other in others:
                other.close()
        greeter.join()
    assert not left, f"Processes left behind: {left}"


def greet(server: socket.socket, times: int) -> None:
    for _ in range(times):
        with server.accept()[0] as connection:
            connection.sendall(b"hello")


HIDE = """
import secrets, subprocess, tempfile
number = 31_000_000 + secrets.randbelow(1_000_000)
subprocess.run(["/bin/sh", "-c", f"setsid env -i sleep {number} >/dev/null 2>&1 </dev/null &"], check=True)
folder = tempfile.gettempdir()
"""


@pytest.mark.parametrize("start", ["forked", "fresh"])
@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock"])
def test_nothing_outlives_a_worker_that_is_killed(sandbox: str, start: str, new_kernel: Callable[..., Kernel]) -> None:
    """Not even a process that has no parent, process group or environment of its session."""
    service = Service.create()
    service.start_broker()
    options = {"BATON_WORKER_SANDBOX": sandbox, "BATON_WORKER_WARM_STARTS": str(start == "forked").lower()}
    name = service.start_worker(**options)
    try:
        kernel = service.kernel(new_kernel)
        kernel.gpu(HIDE).ok()
        number, folder = kernel.evaluate("number, folder")
        wait_until(lambda: sleepers(number) == 1, "the process has begun")
        service.kill(name)
        wait_until(lambda: sleepers(number) == 0, "the process has ended")
        service.start_worker(**options)
        assert kernel.gpu("1 + 1").ok().value == "2"
        if sandbox == "landlock":
            wait_until(lambda: not Path(folder).exists(), "its folder has been removed")
        kernel.shutdown()
    finally:
        left = service.close()
    assert not left, f"Processes left behind: {left}"


def sleepers(number: int) -> int:
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return sum(command[:2] == ["sleep", str(number)] for command in commands)


OF_ITS_OWN = """
import os, pathlib, resource, stat, subprocess, threading

def refused(attempt, *arguments):
    try:
        attempt(*arguments)
    except OSError as error:
        return type(error).__name__

program = pathlib.Path("program")
program.touch(0o755)
program.chmod(0o6755)
mode = oct(stat.S_IMODE(program.stat().st_mode))
child = subprocess.Popen(["sleep", "60"])
os.sched_setaffinity(child.pid, os.sched_getaffinity(0))
os.setpriority(os.PRIO_PROCESS, child.pid, 5)
limits = resource.prlimit(child.pid, resource.RLIMIT_CORE, (0, 0))
nice = os.getpriority(os.PRIO_PROCESS, child.pid)
child.kill()
child.wait()
with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as name:
    name.write("mine")
named = open("/proc/thread-self/comm").read()
name_of_another = refused(open, f"/proc/{os.getppid()}/comm", "w")
everybody = refused(os.setpriority, os.PRIO_USER, 0, os.getpriority(os.PRIO_PROCESS, 0))
owner = refused(os.chown, "program", os.getuid(), -1)
attribute = refused(os.setxattr, "program", "user.x", b"1")
"""


def test_under_landlock_a_cell_changes_what_is_its_own(new_kernel: Callable[..., Kernel]) -> None:
    service = Service.create()
    service.start_broker()
    service.start_worker(prefix=WITHOUT_USER_NAMESPACES, BATON_WORKER_SANDBOX="landlock")
    try:
        kernel = service.kernel(new_kernel)
        kernel.gpu(OF_ITS_OWN).ok()
        # With the set-ID bits, the program would run as the worker's user, whoever starts it.
        assert kernel.evaluate("mode, nice") == ("0o755", 5)
        assert kernel.evaluate("everybody, owner, attribute") == ("PermissionError", "PermissionError", "OSError")
        # CUDA names its threads.
        assert kernel.evaluate("named, name_of_another") == ("mine\n", "PermissionError")
        kernel.shutdown()
    finally:
        left = service.close()
    assert not left, f"Processes left behind: {left}"


OF_A_SERVICE = """
import os, socket
path = os.path.join(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "control")

def refused(attempt, *arguments):
    try:
        attempt(*arguments)
    except OSError as error:
        return type(error).__name__

client = socket.socket(socket.AF_UNIX)
client.connect(path)
caller = os.getpid()
another = socket.socket(socket.AF_UNIX)
another.bind("\\0baton-caller-1-of-somebody-else")
refusals = refused(another.connect, path), refused(os.unlink, path), refused(os.chmod, path, 0o777)
"""


def test_under_landlock_a_service_learns_who_connects(new_kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    """The worker connects for the session, so without a name the service would take the worker for the caller."""
    service = Service.create()
    service.start_broker()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control"))
        listener.listen()
        folder = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
        service.start_worker(prefix=WITHOUT_USER_NAMESPACES, BATON_WORKER_SANDBOX="landlock", **folder)
        try:
            kernel = service.kernel(new_kernel)
            kernel.gpu(OF_A_SERVICE).ok()
            assert kernel.evaluate("refusals") == ("OSError", "PermissionError", "PermissionError")
            connection, name = listener.accept()
            connection.close()
            assert name.startswith(f"\0baton-caller-{kernel.evaluate('caller')}-".encode())
            kernel.shutdown()
        finally:
            left = service.close()
    assert not left, f"Processes left behind: {left}"


THROUGH_A_DESCRIPTOR = """
import os, sys
from baton_shim.session import confinement

def look():
    try:
        return os.read(os.open("secret", os.O_RDONLY, dir_fd=int(sys.argv[1])), 100).decode()
    except OSError as error:
        return type(error).__name__

print(os.path.exists(sys.argv[2]), look())
confinement.stay_inside()
print(os.path.exists("/usr"), look(), len(os.listdir("/proc/self/fd")) > 2)
open("/tmp/one", "w").close()
os.mkdir("/tmp/folder")
os.rename("/tmp/one", "/tmp/folder/one")
"""


def test_an_open_folder_of_the_machine_leads_a_session_nowhere(tmp_path: Path) -> None:
    """The second layer: bubblewrap hides the folder, but a descriptor of it was left open."""
    (tmp_path / "secret").write_text("seen")
    program = [sys.executable, "-c", THROUGH_A_DESCRIPTOR]
    # As in a session, the root is in memory and contains only mounts.
    shown = [str(path) for path in Path("/").iterdir() if path.name not in ("tmp", "proc", "dev")]
    options = ["--unshare-user", *(word for path in shown for word in ("--ro-bind", path, path))]
    options += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    folder = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        command = ["bwrap", *options, *program, str(folder), str(tmp_path / "secret")]
        said = subprocess.run(command, pass_fds=[folder], capture_output=True, text=True)
    finally:
        os.close(folder)
    assert said.returncode == 0, said.stderr
    assert said.stdout.split() == ["False", "seen", "True", "PermissionError", "True"]
