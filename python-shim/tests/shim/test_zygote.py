"""A process that forks sessions, and the worker's end of its connections."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

HELD = """
import os, sys
held = int(sys.argv[2])
sys.argv[2:] = []
real_fork = os.fork
def fork():
    child = real_fork()
    if child:
        os.read(held, 1)
    return child
os.fork = fork
from baton_shim.session import zygote
zygote.main()
"""
"""A zygote that continues after a fork only when a pipe is closed."""


def test_a_fork_that_is_faster_than_its_zygote_is_known_by_its_process_id() -> None:
    control, of_zygote = socket.socketpair()
    worker, of_fork = socket.socketpair()
    held, release = os.pipe()
    numbers = [of_zygote.fileno(), held]
    with subprocess.Popen([sys.executable, "-c", HELD, *map(str, numbers)], pass_fds=numbers) as zygote:
        try:
            of_zygote.close()
            assert control.makefile().readline() == "ready\n"
            socket.send_fds(control, [b"!"], [of_fork.fileno()])
            of_fork.close()
            worker.sendall(b"!")  # no control groups
            number = int.from_bytes(worker.recv(64), "little")
            children = Path(f"/proc/{zygote.pid}/task/{zygote.pid}/children").read_text().split()
            assert children == [str(number)]
        finally:
            os.close(release)
            os.close(held)
            control.close()
            worker.close()
