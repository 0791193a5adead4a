"""Other tools for the same task: imported by a notebook kernel, with one remote process for each tool.

Each tool's `cell(body, takes, gives)` sends names there, runs the body, and returns names. The user has to say which
names. Run as a program, this module is the remote process.
"""

from __future__ import annotations

import io
import socket
import struct
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterable
from typing import Any

LENGTH = struct.Struct("<Q")
MEMORY = "/dev/shm"
Names = Iterable[str]


class Socket:
    """cloudpickle over a loopback socket."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.process = start("socket", str(server.getsockname()[1]))
            self.connection, _ = server.accept()
        at_once(self.connection)

    def cell(self, body: str, takes: Names, gives: Names) -> None:
        send(self.connection, (body, {name: self.namespace[name] for name in takes}, tuple(gives)))
        self.namespace.update(receive(self.connection))

    def close(self) -> None:
        self.connection.close()
        self.process.wait()


class Ipyparallel:
    """push, execute, pull."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        import ipyparallel

        self.namespace = namespace
        self.cluster = ipyparallel.Cluster(n=1, log_level=40)
        self.engine = self.cluster.start_and_connect_sync()[0]
        self.engine.block = True

    def cell(self, body: str, takes: Names, gives: Names) -> None:
        if takes:
            self.engine.push({name: self.namespace[name] for name in takes})
        self.engine.execute(body)
        if gives:
            self.namespace.update(zip(gives, self.engine.pull(list(gives)), strict=True))

    def close(self) -> None:
        self.cluster.stop_cluster_sync()


class Dill:
    """A session is dumped to a file in memory and loaded there, and the same on the way back."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self.process = start("dill", stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def cell(self, body: str, takes: Names, gives: Names) -> None:
        import dill

        session = types.ModuleType("session")
        vars(session).update({name: self.namespace[name] for name in takes}, body=body, gives=tuple(gives))
        there, home = f"{self.folder.name}/there", f"{self.folder.name}/home"
        dill.dump_module(there, session)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{there}\n{home}\n".encode())
        self.process.stdin.flush()
        answer = self.process.stdout.readline().decode().strip()
        if answer != "done":
            raise RuntimeError(answer)
        found = dill.load_module(home)
        self.namespace.update({name: getattr(found, name) for name in gives})

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()


def start(*arguments: str, **pipes: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, *arguments], **pipes)


def at_once(connection: socket.socket) -> None:
    """Otherwise a small message waits up to 40 ms for the acknowledgement of the previous one."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def send(connection: socket.socket, message: object) -> None:
    import cloudpickle

    data = cloudpickle.dumps(message)
    connection.sendall(LENGTH.pack(len(data)))
    connection.sendall(data)


def receive(connection: socket.socket) -> Any:
    import cloudpickle

    data = bytearray(LENGTH.unpack(exactly(connection, bytearray(LENGTH.size)))[0])
    return cloudpickle.loads(exactly(connection, data))


def exactly(connection: socket.socket, room: bytearray) -> bytearray:
    rest = memoryview(room)
    while rest:
        count = connection.recv_into(rest)
        if not count:
            raise EOFError
        rest = rest[count:]
    return room


def serve_socket(port: int) -> None:
    namespace: dict[str, Any] = {}
    with socket.create_connection(("127.0.0.1", port)) as connection:
        at_once(connection)
        while True:
            try:
                body, taken, gives = receive(connection)
            except EOFError:
                return
            namespace.update(taken)
            exec(body, namespace)
            send(connection, {name: namespace[name] for name in gives})


def serve_dill(lines: io.BufferedIOBase) -> None:
    import dill

    namespace: dict[str, Any] = {}
    while there := lines.readline().decode().strip():
        home = lines.readline().decode().strip()
        try:
            taken = dict(vars(dill.load_module(there)))
            body, gives = taken.pop("body"), taken.pop("gives")
            namespace.update({name: value for name, value in taken.items() if not name.startswith("__")})
            exec(body, namespace)
            session = types.ModuleType("session")
            vars(session).update({name: namespace[name] for name in gives})
            dill.dump_module(home, session)
            answer = "done"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}".replace("\n", " ")
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "socket":
        serve_socket(int(sys.argv[2]))
    else:
        serve_dill(sys.stdin.buffer)
