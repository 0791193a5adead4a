"""The ZeroMQ sockets of a session's kernel: they exist, because ipykernel uses them, but have no addresses.

ipykernel listens on five sockets, writes their addresses and its key to a file, and receives the output of forked
processes through a sixth. A session has no clients of its own: it talks to its worker over the private socket, and
receives the output of forked processes over a pair of sockets that they inherit (`publisher.py`).

**Invariant:** no other process can connect to a session's kernel, and the kernel's key exists in its memory only.
"""

from __future__ import annotations

from typing import Any

from ipykernel.iostream import IOPubThread
from zmq.constants import SocketType

from baton_shim.base.compat import SOCKETS, require

_NO_FILE = "this session has no connection file, because only its worker connects to it"
"""Errors of functions that look for the file contain this instead of its name."""


def give_no_addresses(app: Any) -> None:
    """Raises AttributeError if this ipykernel binds its sockets in a way that is not known here."""
    require(SOCKETS)
    app.connection_file = _NO_FILE
    app.transport = "ipc"  # of TCP, ipykernel warns; that would be the last line of each session that dies silently
    app._bind_socket = lambda _socket, port: port
    for step in ("init_connection_file", "write_connection_file", "init_heartbeat"):
        setattr(app, step, lambda: None)

    def init_iopub(context: Any) -> None:
        app.iopub_socket = context.socket(SocketType.PUB)
        app.configure_tornado_logger()
        app.iopub_thread = IOPubThread(app.iopub_socket)  # without its socket for forked processes
        app.iopub_thread.start()
        app.iopub_socket = app.iopub_thread.background_socket

    app.init_iopub = init_iopub
