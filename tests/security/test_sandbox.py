"""Two students on one worker: what one of them can do to the other, to the worker and to the machine.

Their sessions are forks of one zygote, or each starts a Python, possibly that of an image; the restrictions are the
same. The attacks also run without a sandbox, where each must succeed; this shows that the probe works.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from end_to_end import Kernel, Place, Service, wait_until
from end_to_end.ports import free_port
from end_to_end.restricted import WITHOUT_USER_NAMESPACES
from end_to_end.root_images import make_image
from end_to_end.service import BINARY, stopped
from end_to_end.wheels import Wheels

pytestmark = pytest.mark.every_user

PROBE = Path(__file__).with_name("probe.py").read_text()
ATTEMPTS: dict[str, Any] = {"__name__": "probe"}
exec(PROBE, ATTEMPTS)
PAGE = Path(__file__).parents[2] / "docs/security.md"
OF_ANOTHER_TEST = "reach private addresses, clouds' metadata, the worker's machine or the broker with"
"""How the row begins whose attempts are in `test_egress.py`."""
BASIC_DEVICES = {"console", "core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout"}
BASIC_DEVICES |= {"tty", "urandom", "zero"}

ONLY_FOR_ROOT = {
    "write_settings_of_the_system",
    "write_into_python_of_all",
    "change_program_of_all",
    "change_mode_of_program_of_all",
    "has_capabilities",
    "fill_root",
    "fill_folder_of_devices",
}
"""Without a sandbox, only a worker that runs as root can do these."""

LIMITS = {
    "BATON_WORKER_SESSION_MEMORY": "600MiB",
    "BATON_WORKER_SESSION_PROCESSES": "200",
    "BATON_WORKER_SESSION_SCRATCH": "32MiB",
}
WITHOUT_GROUPS = {
    "memory": {"take_memory"},
    "processes": {"start_many_processes"} if os.geteuid() == 0 else set(),
}
"""Attacks that succeed if a worker reports that it may not create control groups for these."""

REACHED_UNDER_LANDLOCK: dict[str, set[str]] = {
    "see which processes run, with their command lines": {"see_processes_of_others"},
    "see which connections and sockets there are": {"see_sockets_of_others"},
    "learn whether a file exists, how large it is and when it changed, if the path is known": {
        "know_that_file_of_another_session_is_there"
    },
    "see which devices there are": {"see_devices"},
    "fill its home folder, its temporary folder or its shared memory": {"fill_home", "fill_shared_memory"},
    "share the machine's namespaces": {f"share_{name}_namespace" for name in ATTEMPTS["NAMESPACES"]},
    "use up all processes that the user may have": set(),  # without control groups: `WITHOUT_GROUPS`
}
"""What Landlock does not refuse, by the rows in bold of the table in `docs/security.md`."""
VICTIM = """
import os

def keep():
    import ctypes, os, socket, sys, tempfile
    with open(f"/dev/shm/{shared}", "w") as opened:
        opened.write(text)
    path = os.path.join(tempfile.gettempdir(), text)
    listeners = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    for listener, place in zip(listeners, (path, "\\0" + abstract)):
        listener.bind(place)
        listener.listen()
    secret = ctypes.create_string_buffer(text.encode())
    sys.canary = (secret, listeners)  # in the session alone
    return ctypes.addressof(secret), path

def keep_what_has_numbers():
    import ctypes, socket, sys
    listener, datagrams = socket.socket(socket.AF_INET), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    datagrams.bind(found[1] + "-datagrams")
    libc = ctypes.CDLL(None)
    number = libc.shmget(key, 4096, 0o1666)
    libc.shmat.restype = ctypes.c_void_p
    ctypes.memmove(libc.shmat(number, None, 0), text.encode(), len(text))
    sys.canary += (listener, datagrams)
    return listener.getsockname()[1]

def connect_to_service():
    import os, socket
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(os.path.join(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "control"))

with open(file) as opened:
    opened.read()
connect_to_service()
found = keep()
"""
WITH_NUMBERS = "numbered = keep_what_has_numbers()"
VICTIM_STILL_THERE = "import sys\ncanary_is_there = (sys.canary[0].value.decode(), open(file).read())"
Attacked = tuple[str, dict[str, str], dict[str, bool], set[str]]
"""The kind of sandbox, the results of the probe, what it left outside, and which limits were missing."""

ATTACK = """
names = {"__name__": "probe"}
exec(source, names)
found = names["attack"](row, facts)
del names
"""
LEAVE = """
names = {"__name__": "probe"}
exec(source, names)
names["leave_process"](facts)
left = names["leave_file"](facts)
del names
"""
TAKE_MEMORY = """
names = {"__name__": "probe"}
exec(source, names)
found = names["attempt"](names["take_memory"], facts)
del names
"""


class Victim(NamedTuple):
    kernel: Kernel
    secret: str
    file: Path

    def is_unharmed(self) -> bool:
        self.kernel.gpu(VICTIM_STILL_THERE).ok()
        there: bool = self.kernel.evaluate("canary_is_there") == (self.secret, self.secret)
        return there and self.file.read_text() == self.secret


class Echo:
    """Answers UDP packets."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self) -> None:
        while (said := self._socket.recvfrom(100))[0] != b"end":
            self._socket.sendto(said[0], said[1])

    def close(self) -> None:
        self._socket.sendto(b"end", ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()


class Numbered:
    """Things that a session under Landlock cannot create itself: TCP and datagram sockets, and System V memory.

    They belong to another program of the worker's user, and the attacker tries to reach them.
    """

    def __init__(self, folder: Path, key: int, secret: str) -> None:
        self.path = str(folder / "datagrams")
        self._datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._datagrams.bind(self.path)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._libc = ctypes.CDLL(None)
        self._memory = self._libc.shmget(key, 4096, 0o1666)
        self._libc.shmat.restype = ctypes.c_void_p
        ctypes.memmove(self._libc.shmat(self._memory, None, 0), secret.encode(), len(secret))

    def close(self) -> None:
        self._datagrams.close()
        self._listener.close()
        self._libc.shmctl(self._memory, 0, None)


SANDBOXES = [
    pytest.param("bubblewrap-forked-gpu", marks=pytest.mark.gpu),
    "bubblewrap-forked",
    "bubblewrap-fresh",
    "bubblewrap-image",
    "landlock-forked",
    "landlock-fresh",
    "none-fresh",
]


@pytest.fixture(scope="module", params=SANDBOXES)
def attacked(request: pytest.FixtureRequest) -> Iterator[Attacked]:
    sandbox, start, *device = request.param.split("-")
    if sandbox == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.fail("bubblewrap is missing: run scripts/install-system-packages sandbox")
    port = free_port()
    service = Service(Place.create(), f"http://127.0.0.1:{port}")
    echo = Echo()
    kernels: list[Kernel] = []
    try:
        attack = run_attack(service, sandbox, start, port, echo.port, kernels)
        assert not device or "Sessions time-share this machine's GPU" in service.log("worker-0")
        yield sandbox, *attack
    finally:
        for kernel in kernels:
            kernel.shutdown()
        echo.close()
        left = service.close()
    assert not left, f"Processes left behind: {left}"


def run_attack(
    service: Service, sandbox: str, start: str, port: int, udp: int, kernels: list[Kernel]
) -> tuple[dict[str, str], dict[str, bool], set[str]]:
    place = service.place
    (place.folder / "home/secret").write_text("of the worker's user")
    (place.folder / "token").write_text("token-of-this-test")
    (place.folder / "services").mkdir()
    gpu_service = socket.socket(socket.AF_UNIX)
    gpu_service.bind(str(place.folder / "services/control"))
    gpu_service.listen()
    forked = start == "forked"
    limits = {} if sandbox == "none" else dict(LIMITS)
    limits |= {"BATON_WORKER_WARM_STARTS": str(forked).lower(), "BATON_WORKER_FILES": "mirror"}
    limits |= {"CUDA_MPS_PIPE_DIRECTORY": str(place.folder / "services")}
    courses = place.folder / "courses.toml"
    courses.touch()
    if start == "image":
        courses.write_text('[default]\nenvironment = "image"\n')
        limits |= {"BATON_CONFIG": str(offer_image(place))}
    service.start_broker(BATON_BROKER_COURSES_FILE=str(courses))
    prefix = WITHOUT_USER_NAMESPACES if sandbox == "landlock" else []
    service.start_worker(slots=2, prefix=prefix, BATON_WORKER_SANDBOX=sandbox, **limits)

    def open_kernel(name: str) -> Kernel:
        folder = place.work / name
        folder.mkdir()
        (folder / "diary.txt").write_text(name)
        kernels.append(service.kernel(lambda **given: Kernel.start(given.pop("at"), "baton", **given), folder=folder))
        return kernels[-1]

    kernel, name = open_kernel("victim"), secrets.token_hex(6)
    (place.work / "victim/diary.txt").write_text(name)
    victim = Victim(kernel, name, place.work / "victim/diary.txt")
    names = {"text": name, "shared": name, "abstract": name, "file": "diary.txt"}
    key = secrets.randbelow(1 << 30)
    kernel.run("\n".join(f"{variable} = {value!r}" for variable, value in names.items()) + f"\nkey = {key}").ok()
    kernel.gpu(VICTIM).ok()
    address, path = kernel.evaluate("found")
    numbered = None
    if sandbox == "landlock":
        numbered = Numbered(place.folder, key, name)
        tcp, datagrams = numbered.port, numbered.path
        shared_file = str(next(Path("/dev/shm").glob(f"baton-scratch-*/shm/{name}")))
    else:
        kernel.gpu(WITH_NUMBERS).ok()
        tcp, datagrams = kernel.evaluate("numbered"), f"{path}-datagrams"
        shared_file = f"/dev/shm/{name}"
    mirrored = next(place.folder.glob("home/.local/state/baton/mirrors/*/**/diary.txt"))
    # Under Landlock a session is in the worker's namespaces. The session's links are read, because the worker's are not
    # readable.
    namespaces = f"/proc/{kernel.session_pid if sandbox == 'landlock' else 'self'}/ns"
    facts: dict[str, Any] = {
        "abstract": name,
        "address": address,
        "broker": port,
        "datagrams": datagrams,
        "device": other_devices()[0],
        "file": str(mirrored),
        "home_file": str(place.folder / "home/secret"),
        "key": key,
        "left": f"left-{name}",
        "namespaces": {found: os.readlink(f"{namespaces}/{found}") for found in os.listdir(namespaces)},
        "planted": str(mirrored.with_name("planted.py")),
        "process": kernel.session_pid,
        "runtime_folder": str(place.folder / "run"),
        "secret": name,
        "service": str(place.folder / "services/control"),
        "shared": name,
        "shared_file": shared_file,
        "sleep": 31_000_000 + secrets.randbelow(1_000_000),
        "socket": path,
        "tcp": tcp,
        "token_file": str(place.folder / "token"),
        "udp": udp,
        "usable_device": next(filter(can_open, other_devices()), None),
        "worker": service.process("worker-0").pid,
    }
    attacker = open_kernel("attacker")
    attacker.run(f"facts = {facts!r}\nsource = {PROBE!r}").ok()
    found: dict[str, str] = {}
    for row in ATTEMPTS["ROWS"]:
        attacker.run(f"row = {row!r}").ok()
        attacker.gpu(ATTACK).ok()
        found |= attacker.evaluate("found")
        assert victim.is_unharmed(), f"A cell that tried to {row} harmed another session"
    attacker.gpu(LEAVE).ok()
    file = attacker.evaluate("left")
    assert is_forked(attacker.session_pid) is forked
    if forked:
        assert knows(psutil.Process(attacker.session_pid), [name]), "The attacker was told"
        assert not knows(zygote_of(attacker.session_pid), [name, attacker_mark(attacker)])
    process = psutil.Process(attacker.session_pid)
    error = attacker.gpu(TAKE_MEMORY).error
    assert error is None or error[0] == "OutOfMemory"
    found["take_memory"] = attacker.evaluate("found") if error is None else f"refused: {error[1]}"
    attacker.shutdown()
    wait_until(lambda: not process.is_running(), "the attacker's session has ended")
    if sandbox != "none":  # the worker removes the session's folders in the background
        wait_until(lambda: not Path(file).exists(), "the attacker's file has been removed")

    def find_daemons() -> list[psutil.Process]:
        return [daemon for daemon in psutil.process_iter() if str(facts["sleep"]) in command_of(daemon)]

    if sandbox != "none":  # it may end slightly later than the session
        wait_until(lambda: not find_daemons(), "the attacker's process has ended")
    daemons = find_daemons()
    left = {"a process": bool(daemons), "a file": Path(file).exists()}
    for daemon in daemons:
        daemon.kill()
    assert victim.is_unharmed()
    gpu_service.close()
    if sandbox == "none":
        for path in (file, facts["socket"], facts["datagrams"], shared_file):
            Path(path).unlink(missing_ok=True)
    if numbered is not None:
        numbered.close()
    return found, left, service.unlimited()


def other_devices() -> list[str]:
    """Those that no session may use. A session of a GPU has some of NVIDIA's."""
    names = sorted(name for name in os.listdir("/dev") if name not in BASIC_DEVICES)
    return [f"/dev/{name}" for name in names if not name.startswith("nvidia")]


def can_open(device: str) -> bool:
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return Path(device).is_block_device() or Path(device).is_char_device()


def offer_image(place: Place) -> Path:
    """The configuration of a worker that offers an image."""
    wheels = place.folder / "wheels"
    wheels.mkdir()
    root = place.folder / "image"
    python = make_image(root, Wheels.with_what_baton_needs(wheels), BINARY.with_name("uv"))
    configuration = place.folder / "worker.toml"
    configuration.write_text(f'[environment.image]\nimage = "{root}"\npython = "{python}"\n')
    return configuration


def is_forked(session: int) -> bool:
    return "baton_shim.session.zygote" in command_of(psutil.Process(session))


def zygote_of(session: int) -> psutil.Process:
    """The zygote whose child is the session's supervisor."""
    parents = psutil.Process(session).parents()
    return next(process for process in parents[1:] if "baton_shim.session.zygote" in command_of(process))


def attacker_mark(attacker: Kernel) -> str:
    environment = Path(f"/proc/{attacker.session_pid}/environ").read_bytes().split(b"\0")
    return next(entry.decode() for entry in environment if entry.startswith(b"BATON_SESSION="))


def knows(process: psutil.Process, texts: list[str]) -> set[str]:
    """The texts that the memory of a process contains."""
    found = set()
    folder = Path(f"/proc/{process.pid}")
    with stopped(process), open(folder / "maps") as maps, open(folder / "mem", "rb", 0) as memory:
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "its memory stays as it is")
        for line in maps:
            place, permissions, *_ = line.split()
            begin, end = (int(number, 16) for number in place.split("-"))
            if permissions[:2] != "rw":
                continue
            memory.seek(begin)
            contents = memory.read(end - begin)
            found |= {text for text in texts if text.encode() in contents}
    return found


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def table(found: dict[str, str]) -> str:
    return "\n".join(f"{name:45} {said}" for name, said in found.items())


def test_every_attempt_fails_in_the_sandbox_and_succeeds_without(
    attacked: Attacked,
) -> None:
    sandbox, found, _, without_groups = attacked
    print(table(found))
    if sandbox != "none":
        expected = set().union(*(WITHOUT_GROUPS.get(kind, set()) for kind in without_groups))
        if sandbox == "landlock":
            expected |= set().union(*REACHED_UNDER_LANDLOCK.values())
        assert {name for name, said in found.items() if said == "succeeded"} == expected, table(found)
        return
    impossible = ONLY_FOR_ROOT if os.geteuid() else set()
    if not any(map(can_open, other_devices())):  # the tests' user may open none
        impossible = impossible | {"use_devices"}
    blind = {name for name, said in found.items() if said != "succeeded"}
    assert blind == impossible, table(found)


def rows_of(section: str) -> list[str]:
    """The first column of the table that follows this line of the page."""
    lines = PAGE.read_text().partition(f"| a cell tries to | {section} |\n| --- | --- |\n")[2].splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("|"))
    return [line.split(" | ")[0].removeprefix("| ") for line in lines[:end]]


def test_the_page_and_the_probe_have_the_same_rows() -> None:
    rows = [row for row in rows_of("in the sandbox") if not row.startswith(OF_ANOTHER_TEST)]
    assert sorted(rows) == sorted([*ATTEMPTS["ROWS"], *ATTEMPTS["OF_THE_END"]])
    bold = [row.split("**")[1] for row in rows_of("under Landlock") if row.startswith("**")]
    assert sorted(bold) == sorted(REACHED_UNDER_LANDLOCK)


MUCH = {
    "variables": "kept = b'1' * (1 << 30)",
    "memory files": "import os\nfile = os.memfd_create('')\nfor _ in range(1024):\n    os.write(file, bytes(1 << 20))",
}


@pytest.mark.parametrize("kind", MUCH)
@pytest.mark.parametrize("sandbox", ["bubblewrap", "none"])
def test_a_cell_beyond_its_memory_is_told_so(sandbox: str, kind: str, new_kernel: Callable[..., Kernel]) -> None:
    service = Service.create()
    service.start_broker()
    service.start_worker(BATON_WORKER_SANDBOX=sandbox, BATON_WORKER_SESSION_MEMORY="400MiB")
    try:
        kernel, other = service.kernel(new_kernel), service.kernel(new_kernel)
        other.gpu("x = 1").ok()
        error = kernel.gpu(MUCH[kind]).error
        if kind == "memory files" and (sandbox == "none" or "memory" in service.unlimited()):
            assert error is None, "Only a control group sees them"
        else:
            assert error is not None
            assert error[0] == "OutOfMemory"
            assert "The cell was stopped because its processes used" in error[1], error
            assert "the limit is 400 MiB" in error[1], error
        assert other.gpu("x + 1").ok().value == "2"
        assert kernel.gpu("1 + 1").ok().value == "2"
        kernel.shutdown()
        other.shutdown()
    finally:
        left = service.close()
    assert not left, f"Processes left behind: {left}"


def test_nothing_is_left_of_a_sandboxed_session(attacked: Attacked) -> None:
    sandbox, _, left, _ = attacked
    assert set(left.values()) == {sandbox == "none"}, left
