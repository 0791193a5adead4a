"""A private home for everything that a test starts, and the list of what is still running there."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from end_to_end.waiting import wait_until

MARK = "PLACE_OF_THIS_TEST"
PEER = struct.Struct("3i")

SANDBOX = os.environ.get("BATON_TEST_SANDBOX", "bubblewrap")
"""The sandbox of all workers, also of those of `baton up`, whose default is none. Empty: the commands' defaults."""

WHO = "os.getpid(), os.environ['BATON_SESSION']"
"""What a cell prints so that a test can find its process."""

OUTER_ENVIRONMENT = dict(os.environ)
"""The environment with which the tests were started, before any of them changed it."""


@dataclass(frozen=True)
class Place:
    """Folders and environment of one imaginary user. Its processes have the folder's name in their environment."""

    folder: Path

    @classmethod
    def create(cls) -> Place:
        if SANDBOX == "bubblewrap" and shutil.which("bwrap") is None:
            hint = "run scripts/install-system-packages sandbox, or set BATON_TEST_SANDBOX=none"
            raise RuntimeError(f"bubblewrap is missing: {hint}")
        # Sockets are in it, and their paths must be short.
        place = cls(Path(tempfile.mkdtemp(prefix="baton-")))
        for name in ("run", "home", "work", "signs"):
            (place.folder / name).mkdir(mode=0o700)
        return place

    @property
    def work(self) -> Path:
        """The folder of the notebooks."""
        return self.folder / "work"

    @property
    def signs(self) -> Path:
        """The folder in which a test creates files that cells wait for: sandboxed cells may read them."""
        return self.folder / "signs"

    def find(self, pattern: str) -> list[Path]:
        """All files and folders whose paths end like this, even while others disappear."""
        entries = (Path(folder, name) for folder, *names in os.walk(self.folder) for name in itertools.chain(*names))
        return [path for path in entries if path.match(pattern)]

    @property
    def environment(self) -> dict[str, str]:
        ours = ("BATON_", "JUPYTER", "XDG_")
        kept = {key: value for key, value in OUTER_ENVIRONMENT.items() if not key.startswith(ours)}
        home = self.folder / "home"
        sandbox = {"BATON_WORKER_SANDBOX": SANDBOX} if SANDBOX else {}
        return (
            kept
            | sandbox
            | {
                MARK: str(self.folder),
                "BATON_WORKER_READABLE": str(self.signs),
                "BATON_WORKER_SESSION_ENVIRONMENT": f"{MARK},BATON_TEST_*",
                "HOME": str(home),
                "IPYTHONDIR": str(home / ".ipython"),
                "JUPYTER_CONFIG_DIR": str(home / ".jupyter"),
                "JUPYTER_DATA_DIR": str(home / ".local/share/jupyter"),
                "JUPYTER_RUNTIME_DIR": str(self.folder / "run/jupyter"),
                "MPLCONFIGDIR": str(home / ".matplotlib"),
                "XDG_CACHE_HOME": str(home / ".cache"),
                "XDG_CONFIG_HOME": str(home / ".config"),
                "XDG_DATA_HOME": str(home / ".local/share"),
                "XDG_RUNTIME_DIR": str(self.folder / "run"),
                "XDG_STATE_HOME": str(home / ".local/state"),
            }
        )

    def processes(self) -> list[psutil.Process]:
        """Every living process that was started in this place, directly or not."""
        service = self._service_pid()
        return [process for process in psutil.process_iter() if process.pid == service or self._started(process)]

    def _started(self, process: psutil.Process) -> bool:
        try:
            marked = process.environ().get(MARK) == str(self.folder)
            return marked and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def _service_pid(self) -> int | None:
        """The process of `baton up`, whose environment only root can read."""
        with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
            client.connect(str(self.folder / "run/baton/broker.sock"))
            return PEER.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))[0]
        return None

    def session_pid(self, said: str) -> int:
        """The id, outside of its sandbox, of the process that printed `WHO`."""
        inside, mark = said.split()
        found = [process.pid for process in self.processes() if is_called(process, inside, mark)]
        assert len(found) == 1, found
        return found[0]

    def process(self, *words: str) -> psutil.Process:
        """The one process whose command line has these words.

        A process that it starts has the same words until it executes its program.
        """
        found: list[psutil.Process] = []

        def is_one() -> bool:
            found[:] = [process for process in self.processes() if has_words(process, words)]
            return len(found) == 1

        try:
            wait_until(is_one, f"there is one process: {words}")
        except AssertionError as error:
            error.add_note(str(describe(found)))
            raise
        return found[0]

    def has(self, *words: str) -> bool:
        return any(has_words(process, words) for process in self.processes())

    def close(self) -> list[str]:
        """Asks the services to end, then returns what is left: nothing should be."""
        for process in self.processes():
            if is_service(process):
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGTERM)
        try:
            return end_rest(self.processes)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def is_called(process: psutil.Process, inside: str, mark: str) -> bool:
    """Whether the process belongs to the session with this mark and has this id in its own namespace."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        numbers = next(line for line in lines if line.startswith("NSpid:"))
        return process.environ().get("BATON_SESSION") == mark and numbers.split()[-1] == inside
    except (OSError, psutil.Error):
        return False


def lives(process: psutil.Process) -> bool:
    """Whether it has not ended. One that its parent has not waited for yet has ended, too."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_service(process: psutil.Process) -> bool:
    return any(has_words(process, ("baton", verb)) for verb in ("up", "broker", "worker"))


def has_words(process: psutil.Process, words: tuple[str, ...]) -> bool:
    """Whether the command line contains the words in this order; for a path, its last part counts."""
    try:
        line = [part.rsplit("/", 1)[-1] for part in process.cmdline()]
    except psutil.Error:
        return False
    rest = iter(line)
    return all(word in rest for word in words)


def end_rest(processes: Callable[[], list[psutil.Process]]) -> list[str]:
    """Gives the processes time to end, returns those that have not, and kills them."""
    try:
        wait_until(lambda: not processes(), "all processes ended")
    except AssertionError:
        left = processes()
        names = describe(left)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return names
    return []


def describe(processes: list[psutil.Process]) -> list[str]:
    lines = []
    for process in processes:
        try:
            lines.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
        except psutil.Error:
            continue
    return lines
