"""A broker and its workers as separate processes, so that a test can kill, stop and restart them."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from end_to_end.kernel import Kernel
from end_to_end.place import Place
from end_to_end.waiting import wait_until

if TYPE_CHECKING:  # benchmarks run where its package is not installed
    from end_to_end.tls import Tls

BINARY = Path(sys.executable).parent / "baton"

TOKEN = "token-of-this-test"

GROUPS = os.environ.get("BATON_TEST_GROUPS", "")
"""A control group (version 2) that was delegated to this user. Each worker gets a group in it, as from systemd."""
IN_OWN_GROUP = 'group=$(mktemp -d "$0/worker-XXXXXX") && echo $$ > "$group/cgroup.procs" && exec "$@"'

AT_FDCWD = -100
RENAME_EXCHANGE = 2

SHORT_GRACES = {"BATON_BROKER_WORKER_GRACE": "1s"}


class Service:
    """Configured only through the environment, as by an administrator."""

    def __init__(self, place: Place, listen: str | None = None, tls: Tls | None = None) -> None:
        """`listen`: an address of this machine instead of a socket in the place's folder: `http://HOST:PORT`, or
        `https://HOST:PORT` with `tls`."""
        self.place = place
        self.address = listen or f"unix:{self.socket}"
        self._tls = tls
        self._secret = {"BATON_TOKEN": TOKEN} if listen else {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._workers = 0

    @classmethod
    def create(cls) -> Service:
        return cls(Place.create())

    @property
    def socket(self) -> Path:
        return self.place.folder / "run/b.sock"

    @property
    def data(self) -> Path:
        return self.place.folder / "data"

    @property
    def environment(self) -> dict[str, str]:
        return self.place.environment | self.access

    @property
    def access(self) -> dict[str, str]:
        """The variables that a notebook, a worker or a person's command needs."""
        authority = {"BATON_CA_FILE": str(self._tls.ca_file)} if self._tls else {}
        return {"BATON_BROKER_ADDRESS": self.address} | self._secret | authority

    def kernel(self, new_kernel: Callable[..., Kernel], folder: Path | None = None, **environment: str) -> Kernel:
        """A notebook that uses this service."""
        return new_kernel(at=self.place, folder=folder, **(self.access | environment))

    def kernel_with_library(self, new_kernel: Callable[..., Kernel], source: str) -> Kernel:
        """Starts a broker, a worker and a notebook. For both ends, `library` is an installed module."""
        packages = self.place.folder / "site-packages"
        packages.mkdir()
        (packages / "library.py").write_text(source)
        self.start_broker()
        self.start_worker(BATON_WORKER_READABLE=str(packages), PYTHONPATH=str(packages))
        return self.kernel(new_kernel, PYTHONPATH=str(packages))

    # ---- starting. Reading a log costs less than asking a broker, which would delay a slow machine.

    def start_broker(self, *, small_disk: bool = False, **environment: str) -> None:
        listen = self.address.partition("://")[2] or self.address
        arguments = ["broker", "--listen", listen, "--state-folder", str(self.data)]
        if self._tls:
            certificate, key = str(self._tls.certificate), str(self._tls.key)
            arguments += ["--tls-certificate", certificate, "--tls-key", key]
        self._start("broker", arguments, SHORT_GRACES | environment, on_small_disk(self.data) if small_disk else ())
        wait_until(lambda: "listens on" in self.log("broker") and self.answers("/health/ready"), "the broker is ready")

    def start_worker(
        self, name: str | None = None, *, slots: int = 2, prefix: Sequence[str] = (), **environment: str
    ) -> str:
        """Returns its name, by default a new one, when it is connected. `prefix`: a command that runs it."""
        name = self.begin_worker(name, slots=slots, prefix=prefix, **environment)
        connected = f" as {name}"
        wait_until(lambda: connected in self.log(name) and name in self.answers("/"), f"{name} is connected")
        return name

    def begin_worker(
        self, name: str | None = None, *, slots: int = 2, prefix: Sequence[str] = (), **environment: str
    ) -> str:
        """The same without waiting, for a worker that may not connect."""
        if name is None:
            name = f"worker-{self._workers}"
            self._workers += 1
        if GROUPS:
            prefix = ["sh", "-c", IN_OWN_GROUP, GROUPS, *prefix]
        self._start(name, ["worker", "--name", name, "--slots", str(slots)], environment, prefix)
        return name

    def _start(self, name: str, arguments: list[str], environment: dict[str, str], prefix: Sequence[str] = ()) -> None:
        with (self.place.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*prefix, BINARY, *arguments],
                env=self.environment | environment,
                cwd=self.place.work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def answers(self, path: str) -> str:
        """The text of a page; empty while the broker does not answer."""
        import httpx

        socket = str(self.socket) if self.address.startswith("unix:") else None
        headers = {"Authorization": f"Bearer {TOKEN}"} if self._secret else {}
        options: dict[str, Any] = {"headers": headers, "timeout": 60}
        base = "http://broker" if socket else self.address
        # A test may give the broker an untrusted certificate.
        transport = httpx.HTTPTransport(uds=socket, verify=False)
        try:
            with httpx.Client(transport=transport, base_url=base, **options) as client:
                response = client.get(path)
        except httpx.TransportError:
            return ""
        return response.text or "yes" if response.is_success else ""

    def jobs(self) -> list[dict[str, Any]]:
        """The newest first, as in `baton jobs`."""
        address = f"unix:{self.socket}"
        said = run_binary(self.place, "jobs", "--json", BATON_BROKER_ADDRESS=address)
        assert said.returncode == 0, said.stderr
        jobs: list[dict[str, Any]] = json.loads(said.stdout)
        return jobs

    # ---- faults

    @property
    def broker(self) -> psutil.Process:
        return self.process("broker")

    def process(self, name: str) -> psutil.Process:
        return psutil.Process(self._processes[name].pid)

    def dead(self) -> list[str]:
        """Processes that have ended without being asked to."""
        return [name for name, process in self._processes.items() if process.poll() is not None]

    def forget(self, name: str) -> None:
        """Forgets a process that has ended."""
        self._processes.pop(name)

    def kill(self, name: str) -> None:
        self.end(name, signal.SIGKILL)

    def end(self, name: str, number: int) -> int:
        self._processes[name].send_signal(number)
        return self.wait(name)

    def wait(self, name: str) -> int:
        """Waits until a process that was asked to end has ended; returns its status."""
        return self._processes.pop(name).wait(timeout=60)

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Fills the disk of a broker that was started on a small one, which only its own processes see."""
        filler = Path(f"/proc/{self.broker.pid}/root{self.data}/filler")
        fill(filler)
        try:
            yield
        finally:
            filler.unlink()

    @contextmanager
    def no_descriptors(self) -> Iterator[None]:
        """The broker may open only the descriptors that it reserves for itself. Needs root."""
        restore = limit_descriptors(self.broker, self.broker.num_fds() + 8)
        try:
            yield
        finally:
            restore()

    def wait_until_stopped(self, process: psutil.Process) -> None:
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, f"{process} is stopped")

    def unlimited(self) -> set[str]:
        """What its first worker cannot limit on this machine, according to its log."""
        said = re.search("No control group limits what sessions use here: ([^.]*)", self.log("worker-0"))
        return set(said[1].split(", ")) if said else set()

    def log(self, name: str) -> str:
        return (self.place.folder / f"{name}.log").read_text()

    def close(self) -> list[str]:
        """Ends all. A worker with state that notebooks lack waits a minute for the broker, so the broker ends last."""
        broker = self._processes.pop("broker", None)
        end([*self._processes.values()])
        end([broker] if broker is not None else [])
        return self.place.close()


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """The place reports and kills those that do not end."""
    for process in processes:
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)  # after a second request, a worker ends cells that still run
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=75)


def fill(path: Path) -> None:
    """Writes until the disk is full."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def on_small_disk(folder: Path) -> list[str]:
    """The command prefix for processes with 4 MiB in this folder."""
    folder.mkdir(exist_ok=True)
    mount = f'mount -t tmpfs -o size=4m tmpfs {folder} && exec "$0" "$@"'
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", mount]


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """The process sends nothing meanwhile, like one that hangs."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@contextmanager
def broken_store(service: Service) -> Iterator[None]:
    """The broker can neither write nor read a chunk, as with a failing disk."""
    chunks, aside = service.data / "chunks", service.data / "chunks-aside"
    aside.touch()
    exchange(chunks, aside)
    try:
        yield
    finally:
        exchange(chunks, aside)
        aside.unlink()


def exchange(one: Path, other: Path) -> None:
    """In one step: a broker that tries again all the time would make a missing folder."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, bytes(one), AT_FDCWD, bytes(other), RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), f"{one} and {other} cannot be exchanged")


@contextmanager
def exhausted_descriptors(service: Service) -> Iterator[None]:
    """The broker can open no more files and accept no more connections, whatever it closes meanwhile. Needs root."""
    restore = limit_descriptors(service.broker, most=0)
    try:
        yield
    finally:
        restore()


def limit_descriptors(process: psutil.Process, most: int) -> Callable[[], None]:
    """The process can open no more descriptors than `most`, until the returned function is called. Needs root, which
    may also count the descriptors of a process that allows no debugger."""
    limits = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (most, limits[1]))
    return lambda: process.rlimit(psutil.RLIMIT_NOFILE, limits) and None


def run_binary(place: Place, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs one command of the program."""
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 300, "check": False}
    return subprocess.run([BINARY, *arguments], env=place.environment | environment, cwd=place.work, **options)
