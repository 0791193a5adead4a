"""Two network namespaces and the wire between them, which loses packets or delivers them late. Needs root.

Each namespace has one end of the wire as its only network device. This process reads each packet that is sent into one
end and writes it to the other end, or drops it. So it works on kernels without `tc netem`, too.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")

HERE, THERE = "10.77.0.1", "10.77.0.2"
CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
TUN_WITHOUT_HEADER = 0x1001
PACKET_BYTES = 65536
QUEUE_PACKETS = 10_000
"""Further packets are lost, as in a router."""


class Wire:
    """Between `HERE`, where a test listens (`listen`), and `THERE`, where it starts processes (`prefix`)."""

    def __init__(self, name: str, seed: int) -> None:
        self.loss = 0.0
        """The share of packets that are lost."""
        self.delay = 0.0
        """Seconds by which each packet is late; up to the same time is added at random."""
        self._dice = random.Random(seed)
        self._names = [f"{name}-here", f"{name}-there"]
        self._ends = [make_namespace(one, address) for one, address in zip(self._names, (HERE, THERE), strict=True)]
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="wire", daemon=True)
        self._thread.start()

    @staticmethod
    def possible() -> bool:
        return os.geteuid() == 0 and shutil.which("ip") is not None and Path("/dev/net/tun").exists()

    def listen(self) -> socket.socket:
        """A socket that processes at the other end reach as `HERE`."""

        def bound() -> socket.socket:
            listening = socket.socket()
            listening.bind((HERE, 0))
            return listening

        return inside(self._names[0], bound)

    @property
    def prefix(self) -> list[str]:
        """The prefix that starts a command at the other end."""
        return ["nsenter", f"--net=/run/netns/{self._names[1]}"]

    def mend(self) -> None:
        self.loss = self.delay = 0.0

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        for end in self._ends:
            os.close(end)
        for name in self._names:
            ip("netns", "delete", name)

    def _carry(self) -> None:
        late: list[tuple[float, int, int, bytes]] = []
        number = itertools.count()
        others = dict(zip(self._ends, reversed(self._ends), strict=True))
        while not self._closing.is_set():
            now = time.monotonic()
            while late and late[0][0] <= now:
                *_, end, packet = heapq.heappop(late)
                deliver(end, packet)
            wait = min(0.1, late[0][0] - now) if late else 0.1
            for end in select.select(self._ends, [], [], wait)[0]:
                packet = os.read(end, PACKET_BYTES)
                if self._dice.random() < self.loss or len(late) >= QUEUE_PACKETS:
                    continue
                if self.delay:
                    when = time.monotonic() + self._dice.uniform(self.delay, 2 * self.delay)
                    heapq.heappush(late, (when, next(number), others[end], packet))
                else:
                    deliver(others[end], packet)


def deliver(end: int, packet: bytes) -> None:
    with suppress(OSError):  # its queue is full: the packet is lost
        os.write(end, packet)


def make_namespace(name: str, address: str) -> int:
    """A network namespace with one device; this process reads what the device sends."""
    ip("netns", "add", name)

    def open_device() -> int:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"wire", TUN_WITHOUT_HEADER))
        return device

    device = inside(name, open_device)
    for words in (f"address add {address}/24 dev wire", "link set lo up", "link set wire up"):
        ip("-n", name, *words.split())
    return device


def inside(name: str, work: Callable[[], Value]) -> Value:
    """The result of work that a thread does in a namespace."""
    results: list[Value] = []

    def enter_and_work() -> None:
        with open(f"/run/netns/{name}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"Cannot enter the network namespace {name}")
        results.append(work())

    thread = threading.Thread(target=enter_and_work)
    thread.start()
    thread.join()
    return results[0]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
