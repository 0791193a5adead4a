"""The service of one campaign, determined by its seed: the number of workers, the transport, the network.

Everything that a fault or a student must know about it is here.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from end_to_end.clock import Clock
from end_to_end.disks import Disk
from end_to_end.kernel import Kernel
from end_to_end.network import Network, Relay
from end_to_end.place import Place, has_words
from end_to_end.ports import free_port
from end_to_end.service import Service
from end_to_end.wire import Wire
from end_to_end.witness import Witness

SPOILED = ("panicked at", "SIGSEGV", "stack overflow")
"""Texts that no log may contain."""
NO_MEMORY_FOR_A_THREAD = "sys/pal/unix/stack_overflow.rs"
"""Where the standard library aborts if a new thread has no memory, like any process that cannot allocate."""
KEPT_FILES = {"keep.txt": "kept\n", "data/keep.txt": "kept, too\n"}
"""Files in each notebook's folder that no cell touches."""


@dataclass(frozen=True)
class Plan:
    """The kind of service."""

    up: bool
    """`baton up`, started by the first cell, instead of a broker and workers."""
    tcp: bool
    lane: str
    workers: int
    slots: int
    files: str
    """`auto`: sessions work in the notebook's folder; `mirror`: in a mirror of it."""
    cell_bytes: str
    """How much is returned with a cell; the rest is deferred."""
    grid_words: int
    grace: str
    disks: bool
    """State, cache and notebooks are on separate small file systems."""
    clock: bool
    """The services have a clock that can be moved."""
    wire: bool
    """The workers are in a separate network namespace, behind a wire that loses packets."""

    @classmethod
    def random(cls, dice: random.Random) -> Plan:
        up, tcp = dice.random() < 0.15, dice.random() < 0.5
        return cls(
            up=up,
            tcp=tcp,
            lane=dice.choice(["auto", "http"]),
            workers=dice.choice([1, 2]),
            slots=dice.choice([2, 4]),
            files=dice.choice(["auto", "mirror"]),
            cell_bytes=dice.choice(["0", "100000", str(16 << 20)]),
            grid_words=dice.choice([100, 20_000, 20_000, 500_000]),
            grace=dice.choice(["1s", "5s"]),
            disks=dice.random() < 0.4 and Disk.possible(),
            clock=dice.random() < 0.2 and Clock.possible(),
            wire=dice.random() < 0.5 and tcp and not up and Wire.possible(),
        )

    def __str__(self) -> str:
        if self.up:
            service = "baton up"
        else:
            service = f"{self.workers} worker{'s' * (self.workers > 1)}, {'TCP' if self.tcp else 'Unix sockets'}"
        files = "mirror" if self.files == "mirror" else "shared folder"
        extras = [name for name in ("disks", "clock", "wire") if getattr(self, name)]
        facts = [
            service,
            f"{self.slots} slots",
            f"lane {self.lane}",
            files,
            f"{self.cell_bytes} bytes come with a cell",
        ]
        return ", ".join([*facts, *extras])


class Stage:
    """A running service. `busy` says which faults are active; students read it, and one director writes it."""

    def __init__(self, dice: random.Random) -> None:
        plan = self.plan = Plan.random(dice)
        self._lock = threading.Lock()
        self.over = threading.Event()
        """Set when no more faults will begin."""
        self._faults: list[tuple[str, float, float | None]] = []
        place = Place.create()
        self.service = Service(place, f"http://127.0.0.1:{free_port()}" if plan.tcp else None)
        self.witness = Witness(place.signs / "witness")
        self.network = Network()
        self.wire = Wire(f"{place.folder.name}", dice.randrange(10**6)) if plan.wire else None
        self.clock = Clock(place.folder) if plan.clock else None
        self.disks = {name: Disk(folder, size) for name, (folder, size) in self._disk_folders().items()}
        self.worker_relays: dict[str, Relay] = {}
        self.notebook_relays: list[Relay] = []

    @property
    def place(self) -> Place:
        return self.service.place

    # ---- starting

    def start(self) -> None:
        if self.plan.up:
            return
        self.start_broker()
        for _ in range(self.plan.workers):
            self.start_worker(f"worker-{len(self.worker_relays)}")

    def start_broker(self) -> None:
        self.service.start_broker(BATON_BROKER_WORKER_GRACE=self.plan.grace, **self._moved_clock)

    def start_worker(self, name: str) -> None:
        if name not in self.worker_relays:
            self.worker_relays[name] = self._relay(name, self.wire)
        options = self._options | self._moved_clock
        options |= {"BATON_BROKER_ADDRESS": self.worker_relays[name].address, "BATON_WORKER_FILES": self.plan.files}
        prefix = self.wire.prefix if self.wire else ()
        self.service.start_worker(name, slots=self.plan.slots, prefix=prefix, **options)

    def revive(self) -> list[str]:
        """Restarts services that have ended by themselves; returns their names."""
        dead = self.service.dead()
        for name in sorted(dead):  # the broker first
            self.service.forget(name)
            self.start_broker() if name == "broker" else self.start_worker(name)
        return dead

    def start_kernel(self, number: int) -> Kernel:
        """A notebook in a separate folder, of a person with a separate history."""
        folder, log = self.folder(number), self.place.folder / f"notebook-{number}.log"
        for path, text in KEPT_FILES.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        options = self._options | {
            "BATON_CELL_BYTES": self.plan.cell_bytes,
            "IPYTHONDIR": str(self.place.folder / f"ipython-{number}"),
            "JPY_SESSION_NAME": f"notebook-{number}.ipynb",
        }
        if self.plan.up:
            options |= {"BATON_WORKER_FILES": self.plan.files, "BATON_UP_DASHBOARD": "off"}
            return Kernel.start(self.place, folder=folder, log=log, transport="ipc", **options)
        relay = self._relay(f"n{number}")
        self.notebook_relays.append(relay)
        options |= {"BATON_BROKER_ADDRESS": relay.address}

        def new_kernel(at: Place, folder: Path, **environment: str) -> Kernel:
            return Kernel.start(at, folder=folder, log=log, transport="ipc", **environment)

        return self.service.kernel(new_kernel, folder, **options)

    def folder(self, number: int) -> Path:
        return self.place.work / f"notebook-{number}"

    @property
    def _options(self) -> dict[str, str]:
        return {"BATON_TRANSPORT": self.plan.lane}

    @property
    def _moved_clock(self) -> dict[str, str]:
        return self.clock.environment if self.clock else {}

    def _disk_folders(self) -> dict[str, tuple[Path, str]]:
        if not self.plan.disks:
            return {}
        cache = self.place.folder / "home/.cache"
        return {"state": (self.service.data, "256m"), "cache": (cache, "256m"), "notebooks": (self.place.work, "64m")}

    def _relay(self, name: str, wire: Wire | None = None) -> Relay:
        if wire is not None:
            return self.network.relay(self.service.address, wire.listen())
        listen = "http://127.0.0.1:0" if self.plan.tcp else f"unix:{self.place.folder / f'run/{name}'}"
        return self.network.relay(self.service.address, listen)

    # ---- processes

    @property
    def relays(self) -> list[Relay]:
        return [*self.worker_relays.values(), *self.notebook_relays]

    def sessions(self) -> list[psutil.Process]:
        return self._processes("baton_shim.session.start")

    def kernels(self) -> list[psutil.Process]:
        """Proxies and notebook kernels."""
        return [*self._processes("baton", "kernel"), *self._processes("python", "-m", "baton_shim")]

    def services(self) -> list[psutil.Process]:
        """Broker and workers, or `baton up`."""
        return [process for verb in ("up", "broker", "worker") for process in self._processes("baton", verb)]

    def chunks(self) -> list[Path]:
        """The chunk files of the broker and of the workers."""
        folders = [self.service.data / "chunks", self.place.folder / "home/.cache/baton/chunks"]
        state = self.place.folder / "home/.local/state/baton/chunks"
        return [path for folder in [*folders, state] for path in sorted(folder.rglob("*")) if path.is_file()]

    def caches(self) -> list[Path]:
        return [path for path in [self.place.folder / "home/.cache/baton/chunks"] if path.exists()]

    def mirrors(self) -> list[Path]:
        return sorted(path for path in (self.place.folder / "home").rglob("mirror") if path.is_dir())

    def _processes(self, *words: str) -> list[psutil.Process]:
        return [process for process in self.place.processes() if has_words(process, words)]

    @property
    def client_environment(self) -> dict[str, str]:
        """The environment of a command that queries the broker."""
        return {} if self.plan.up else self.service.environment

    # ---- active faults

    def fault_begins(self, name: str) -> None:
        with self._lock:
            self._faults.append((name, time.monotonic(), None))

    def fault_ends(self) -> None:
        with self._lock:
            name, began, _ = self._faults.pop()
            self._faults.append((name, began, time.monotonic()))

    def faults_since(self, moment: float) -> list[str]:
        with self._lock:
            return [name for name, _, ended in self._faults if ended is None or ended > moment]

    def whole_since(self) -> float | None:
        """When the last fault ended; None while one is active."""
        with self._lock:
            if not self._faults:
                return 0.0
            return self._faults[-1][2]

    # ---- the end

    def bad_lines(self) -> list[str]:
        found = []
        for log in self.place.folder.glob("**/*.log"):
            lines = log.read_text(errors="replace").splitlines()
            spoiled = [line for line in lines if any(word in line for word in SPOILED)]
            found += [f"{log.name}: {line}" for line in spoiled if NO_MEMORY_FOR_A_THREAD not in line]
        return found

    def keep_logs(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for log in self.place.folder.glob("*.log"):
            shutil.copy(log, folder)

    def close(self) -> list[str]:
        """Ends everything; returns what is left although it should have ended."""
        try:
            return self.service.close()
        finally:
            self.network.close()
            self.witness.close()
            if self.wire is not None:
                self.wire.close()
            for disk in self.disks.values():
                disk.close()
            shutil.rmtree(self.place.folder, ignore_errors=True)
