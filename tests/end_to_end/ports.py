"""Ports for servers that must be given theirs before they start."""

from __future__ import annotations

import os
import random
import re
import socket
import threading
from contextlib import suppress

PROCESSES = 10
NUMBER = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0) % PROCESSES
"""Of this process among those that run the tests."""
PORTS = range(20_000 + NUMBER, 30_000, PROCESSES)
"""Below those that Linux gives to connections, and not those of another such process: both could take a port before its
server does."""


_lock = threading.Lock()
_next: list[int] = []


def free_ports(count: int) -> list[int]:
    """Ports that this process has not given out recently: several of its threads may start servers."""
    found: list[int] = []
    with _lock:
        while len(found) < count:
            if not _next:
                _next.extend(random.SystemRandom().sample(PORTS, len(PORTS)))
            port = _next.pop()
            with socket.socket() as probe, suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
    return found


def free_port() -> int:
    return free_ports(1)[0]
