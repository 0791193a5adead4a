"""What a student's warm `%%gpu` cells cost while another student attacks the broker, compared with calm cells.

Each attack comes in waves, one per second. The attacker gets only processor time that is not needed otherwise, because
a real one would use another machine.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Any

import httpx
import msgpack
import websocket
from measuring import milliseconds, report, spread

# isort: split
from end_to_end import Kernel, Place, Service
from end_to_end.campaign.stage import free_port
from end_to_end.classroom import PROTOCOL_VERSION
from end_to_end.service import run_binary

ROUNDS = 3
CELLS = 25
"""The number of cells in each round, both calm and under each attack. All together are fewer than 1,000, because the
broker slows down a student who submits more without a pause."""
WAVE_SECONDS = 1.0
TARGET_RATIO = 2.0
MIB = 1 << 20


class Attacker:
    """A student's token, and the broker's address."""

    def __init__(self, port: int, token: str) -> None:
        self.port, self.token = port, token

    def plain(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def notebook(self) -> websocket.WebSocket:
        header = [f"Authorization: Bearer {self.token}"]
        url = f"ws://127.0.0.1:{self.port}/v1/proxy"
        peer = websocket.create_connection(url, header=header, suppress_origin=True, timeout=5)
        self.identity = uuid.uuid4().bytes
        say(peer, "hello", protocol_version=PROTOCOL_VERSION, notebook=self.identity, owner="mallory", course=None)
        assert "welcome" in msgpack.unpackb(peer.recv())
        return peer

    def submission(self, code: str, stream: list[Any]) -> dict[str, Any]:
        cell = {
            "code": code,
            "message_id": "m",
            "execution_count": 1,
            "silent": False,
            "allow_stdin": True,
            "python": "python3",
            "python_version": "3.11",
            "folder": "/",
            "notebook_folder": None,
            "timeout_ms": None,
            "longest_timeout_ms": None,
        }
        base = {"table": self.identity, "messages": 0}
        chunks = {"base": base, "stream": stream, "segments": [], "dropped_segments": []}
        return {
            "job": uuid.uuid4().bytes,
            "notebook": self.identity,
            "notebook_name": "attack.ipynb",
            "cell_key": None,
            "priority": "normal",
            "cell": cell,
            "state": {"chunks": chunks},
        }


def say(peer: websocket.WebSocket, kind: str, **body: Any) -> None:
    peer.send_binary(msgpack.packb({kind: body}))


def messages_that_are_never_whole(attacker: Attacker) -> Iterator[None]:
    """60 MB are announced on each of five connections, but each wave sends only 2 MB."""
    part = bytes(2 * MIB)
    while True:
        with contextlib.ExitStack() as open_ones:
            peers = [attacker.notebook() for _ in range(5)]
            for peer in peers:
                open_ones.callback(peer.shutdown)
                peer.sock.sendall(b"\x82\xff" + struct.pack(">Q", 60 * MIB) + bytes(4))
            for _ in range(10):
                for peer in peers:
                    peer.sock.sendall(part)
                yield


def large_cells(attacker: Attacker) -> Iterator[None]:
    peer = attacker.notebook()
    while True:
        for _ in range(3):
            say(peer, "submit", **attacker.submission("#" * (MIB - 1), []))
        yield


def answers_to_no_question(attacker: Attacker) -> Iterator[None]:
    peer = attacker.notebook()
    cell = attacker.submission("input()", [])
    say(peer, "submit", **cell)
    for question in range(10**9):
        say(peer, "input", job=cell["job"], question=question, value="?")
        if question % 2000 == 0:
            yield


def manifests_that_lie(attacker: Attacker) -> Iterator[None]:
    """One chunk that does not exist, named 16,000 times."""
    peer = attacker.notebook()
    piece = {"stored": {"hash": bytes(32), "bytes": 4 * MIB}}
    while True:
        say(peer, "submit", **attacker.submission("pass", [piece] * 16_000))
        yield


def connections_without_a_token(attacker: Attacker) -> Iterator[None]:
    while True:
        with contextlib.ExitStack() as open_ones:
            for _ in range(400):
                open_ones.enter_context(attacker.plain())
            yield


def wrong_tokens(attacker: Attacker) -> Iterator[None]:
    with httpx.Client(base_url=f"http://127.0.0.1:{attacker.port}") as client:
        while True:
            for _ in range(50):
                client.get("/v1/jobs", headers={"Authorization": f"Bearer {uuid.uuid4()}"})
            yield


ATTACKS: dict[str, Callable[[Attacker], Iterator[None]]] = {
    attack.__name__: attack
    for attack in (
        messages_that_are_never_whole,
        large_cells,
        answers_to_no_question,
        manifests_that_lie,
        connections_without_a_token,
        wrong_tokens,
    )
}


def keep_on(name: str, port: int, token: str, began: Event) -> None:
    """Runs until it is ended, and reopens what the broker closes."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    pause = threading.Event()
    while True:
        with contextlib.suppress(OSError, websocket.WebSocketException, httpx.HTTPError):
            for _ in ATTACKS[name](Attacker(port, token)):
                began.set()
                pause.wait(WAVE_SECONDS)


@contextmanager
def attacked(name: str, port: int, token: str) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    began = context.Event()
    attack = context.Process(target=keep_on, args=(name, port, token, began), daemon=True)
    attack.start()
    try:
        assert began.wait(30), f"{name} did not begin"
        yield
    finally:
        attack.kill()
        attack.join()


def main() -> None:
    port = free_port()
    service = Service(Place.create(), f"http://127.0.0.1:{port}")
    people = service.place.folder / "people.toml"

    def token(name: str, *role: str) -> str:
        said = run_binary(service.place, "people", "add", name, *role, "--people-file", str(people))
        assert said.returncode == 0, said.stderr
        return said.stdout.strip()

    ada, mallory = token("ada", "--course", "ml"), token("mallory", "--course", "ml")
    calm: list[float] = []
    under: dict[str, list[float]] = {name: [] for name in ATTACKS}
    try:
        service.start_broker(BATON_BROKER_PEOPLE_FILE=str(people))
        service.start_worker()
        kernel = service.kernel(
            lambda at, folder, **options: Kernel.start(at, folder=folder, **options), BATON_TOKEN=ada
        )

        def cells() -> list[float]:
            return [milliseconds(lambda: kernel.gpu("pass").ok()) for _ in range(CELLS)]

        cells()
        for _ in range(ROUNDS):
            for name in ATTACKS:
                calm += cells()
                with attacked(name, port, mallory):
                    under[name] += cells()
        kernel.shutdown()
    finally:
        left = service.close()
    assert not left, left
    rows = {"calm": spread(calm) | {"p99 by calm": 1.0}}
    for name, times in under.items():
        found = spread(times)
        rows[name.replace("_", " ")] = found | {"p99 by calm": round(found["p99_ms"] / rows["calm"]["p99_ms"], 2)}
    worst = max(row["p99 by calm"] for row in rows.values())
    verdict = f"{worst} (target: at most {TARGET_RATIO:.0f})"
    report("under-attack", rows, {"p99 under attack by calm": verdict, "target met": worst <= TARGET_RATIO})


if __name__ == "__main__":
    main()
