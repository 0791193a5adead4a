"""Ports for servers that must be given theirs before they start."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

PORTS = range(20_000, 30_000)
"""Below those that Linux gives to connections and to kernels, which could take a port before its server does."""


def free_ports(count: int) -> list[int]:
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if len(found) == count:
            break
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


def free_port() -> int:
    return free_ports(1)[0]
