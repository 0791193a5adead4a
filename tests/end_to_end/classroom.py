"""A full class on a real broker: sixty people whose notebooks and workers send realistic messages, and their past week.

Nothing computes here; what the broker stores, orders and shows is real.
"""

from __future__ import annotations

import json
import select
import sqlite3
import subprocess
import threading
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgpack
import websocket

from end_to_end.past import NAMES, NOTEBOOKS, age, write_past
from end_to_end.place import Place
from end_to_end.service import BINARY, run_binary
from end_to_end.waiting import wait_until

PROTOCOL = Path(__file__).parents[2] / "crates/protocol/src/lib.rs"
PROTOCOL_VERSION = int(PROTOCOL.read_text().partition("PROTOCOL_VERSION: u32 = ")[2].partition(";")[0])
COURSES = """
time_zone = "UTC"

[course.ml101]
time_limit = "5m"
longest_time_limit = "30m"
message = "Office hour until 17:00 in room 5"
budget = { gpu_time = "2h", reset = "Mon 04:00" }

[[course.ml101.lesson]]
when = "Mon,Wed,Fri 17:00-18:30"
people = 60

# It is always over, except in its own minute.
[[course.ml101.lesson]]
when = "Mon 00:00-00:01"
people = 5

[course.vision]
time_limit = "10m"
weight = 2

[course.thesis]
paused = "Back on Monday"
"""

GIB = 1 << 30


class Peer:
    """One WebSocket of a notebook or a worker, which connects again after a restart of the broker."""

    def __init__(self, room: Classroom, path: str) -> None:
        self.room = room
        self.path = path
        self.identity = uuid.uuid4().bytes
        self.held: dict[bytes, int] = {}

    def connect(self) -> None:
        header = [f"Authorization: Bearer {self.room.token}"]
        self.socket = websocket.create_connection(
            f"ws://127.0.0.1:{self.room.port}{self.path}", header=header, suppress_origin=True
        )
        self.say("hello", **self.hello())

    def say(self, kind: str, **body: Any) -> None:
        self.socket.send_binary(msgpack.packb({kind: body}))

    def hello(self) -> dict[str, Any]:
        raise NotImplementedError

    def hears(self, kind: str, body: dict[str, Any]) -> None:
        """Handles a message of the broker."""


class Student(Peer):
    def __init__(self, room: Classroom, name: str, course: str, number: int) -> None:
        super().__init__(room, "/v1/proxy")
        self.name, self.course, self.number = name, course, number
        self.job = uuid.uuid4().bytes

    def hello(self) -> dict[str, Any]:
        return {
            "protocol_version": PROTOCOL_VERSION,
            "notebook": self.identity,
            "owner": self.name,
            "course": self.course,
        }

    def submit(self) -> None:
        cell = {
            "code": "\n\nmodel.fit(images, labels, epochs=20)",
            "message_id": "m",
            "execution_count": 3 + self.number % 17,
            "silent": False,
            "allow_stdin": True,
            "python": "/usr/bin/python3",
            "python_version": "3.13",
            "folder": "/home",
            "notebook_folder": None,
            "timeout_ms": None,
            "longest_timeout_ms": None,
        }
        base = {"table": self.identity, "messages": 0}
        state = {"base": base, "stream": [{"inline": b"x" * 900}], "segments": [], "dropped_segments": []}
        self.say(
            "submit",
            job=self.job,
            notebook=self.identity,
            notebook_name=NOTEBOOKS[self.number % len(NOTEBOOKS)],
            cell_key=None,
            priority="normal",
            cell=cell,
            state={"chunks": state},
        )


class Worker(Peer):
    """Starts the cells that it is given and never ends them."""

    def __init__(self, room: Classroom, name: str, slots: int) -> None:
        super().__init__(room, "/v1/worker")
        self.name, self.slots = name, slots
        self.notebooks: list[bytes] = []

    def hello(self) -> dict[str, Any]:
        return {
            "protocol_version": PROTOCOL_VERSION,
            "worker": self.identity,
            "name": self.name,
            "devices": [{"kind": "cuda", "model": "NVIDIA H200", "memory_bytes": 141 * GIB}],
            "slots": self.slots,
            "sessions": [],
            "assignments": [[job, fencing] for job, fencing in self.held.items()],
        }

    def hears(self, kind: str, body: dict[str, Any]) -> None:
        if kind == "assign":
            job = body["submission"]["job"]
            self.held[job] = body["fencing"]
            self.notebooks.append(body["submission"]["notebook"])
            lines = [{"name": "stdout", "text": f"epoch {epoch}: loss {1 / epoch:.3f}\n"} for epoch in range(1, 6)]
            outputs = [
                {"output": {"kind": "stream", "content": json.dumps(line).encode(), "metadata": b"{}", "buffers": []}}
                for line in lines
            ]
            events = [{"started": {"worker": self.name}}, *outputs]
            self.say("events", job=job, fencing=body["fencing"], first=1, events=events)

    def tell_memory(self) -> None:
        for step in range(24):
            jobs = [
                [job, (4 + 3 * place) * GIB * (step + 4) // 28 + (step % 5) * GIB // 8]
                for place, job in enumerate(self.held)
            ]
            used = sum(size for _, size in jobs) + 9 * GIB
            self.say("load", memory_bytes=used, memory_total_bytes=192 * GIB, jobs=jobs, gpus=[self.gpu(step)])
            time.sleep(0.01)  # so that the curve has a width

    def gpu(self, step: int) -> dict[str, Any]:
        sessions = [
            {"notebook": notebook, "memory_bytes": (12 + 9 * place) * GIB, "utilisation_percent": 0 if place else 60}
            for place, notebook in enumerate(self.notebooks)
        ]
        return {
            "index": 0,
            "name": "NVIDIA H200",
            "utilisation_percent": 60 + step if self.held else 0,
            "memory_used_bytes": sum(session["memory_bytes"] for session in sessions) + 2 * GIB,
            "memory_total_bytes": 141 * GIB,
            "sessions": sessions,
        }


class Classroom:
    """The broker, its people's tokens, and all connections to it."""

    def __init__(self, place: Place, prefix: str = "") -> None:
        self.place = place
        self.folder = place.folder / "classroom"
        self.database = self.folder / "broker.db"
        self.folder.mkdir()
        self.people = self.folder / "people.toml"
        self.tokens = {
            "tia": self._add("tia", "--staff-of", "ml101"),
            "root": self._add("root", "--admin"),
            "Ada": self._add("Ada", "--course", "ml101"),
        }
        (self.folder / "courses.toml").write_text(COURSES)
        self.prefix = prefix
        self.port = 0
        self.peers: list[Peer] = []
        self._stop = threading.Event()

    def _add(self, name: str, *roles: str) -> str:
        said = run_binary(self.place, "people", "add", name, *roles, "--people-file", str(self.people))
        assert said.returncode == 0, said.stderr
        return said.stdout.strip()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}/"

    def page(self, name: str) -> str:
        """The address at which this person signs in."""
        return f"{self.address}?token={self.tokens[name]}"

    def start_broker(self) -> None:
        command = [BINARY, "broker", "--listen", f"127.0.0.1:{self.port}", "--state-folder", str(self.folder)]
        command += ["--people-file", str(self.people), "--courses-file", str(self.folder / "courses.toml")]
        if self.prefix:
            command += ["--url-prefix", self.prefix]
        log = self.folder / "broker.log"
        with log.open("wb") as stderr:
            self.broker = subprocess.Popen(
                command, env=self.place.environment | {"TZ": "UTC"}, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        assert self.broker.stdout is not None
        line = self.broker.stdout.readline()
        assert "listens on" in line, line + log.read_text()
        self.port = int(line.strip().rsplit(":", 1)[1])
        self.token = (self.folder / "token").read_text().strip()

    def stop_broker(self) -> None:
        self.broker.terminate()
        self.broker.communicate(timeout=60)

    def fill(self, people: int = 60) -> None:
        """Everyone has a cell; eight run. Then all of them are made some minutes older."""
        self.start_broker()
        self.stop_broker()
        write_past(self.database)
        self.start_broker()
        workers = [Worker(self, "gpu-1", 4), Worker(self, "gpu-2", 4), Worker(self, "gpu-3", 4)]
        courses = ["ml101"] * 5 + ["vision"] * 3 + ["thesis"]
        students = [
            Student(self, name, courses[number % len(courses)], number) for number, name in enumerate(NAMES[:people])
        ]
        self.peers = [*students, *workers]
        for peer in self.peers:
            peer.connect()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self.run("drain", "gpu-3", "--reason", "A fan is being replaced")
        for submitted, student in enumerate(students[:8], 1):
            student.submit()
            wait_until(lambda due=submitted: self._count("state <> 'finished'") == due, "these eight will run")
        for student in students[8:]:
            student.submit()
        wait_until(lambda: sum(len(worker.held) for worker in workers) == 8, "eight cells run")
        wait_until(lambda: self._count("state <> 'finished'") == people, "all are submitted")
        wait_until(lambda: self._count("state = 'started'") == 8, "eight cells have started")
        self.restart_broker(lambda: age(self.database))
        for worker in workers:
            worker.tell_memory()

    def restart_broker(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """All peers reconnect and continue by number."""
        self.stop_broker()
        self._close_peers()
        meanwhile()
        self.start_broker()
        for peer in self.peers:
            peer.connect()
        for peer in self.peers:
            if isinstance(peer, Student):
                peer.say("resume", job=peer.job, after=0)
        self._stop.clear()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def run(self, *arguments: str) -> None:
        """Runs one of the program's commands as the broker's user."""
        own = {"BATON_BROKER_ADDRESS": f"http://127.0.0.1:{self.port}", "BATON_TOKEN": self.token}
        said = run_binary(self.place, *arguments, **own)
        assert said.returncode == 0, said.stderr

    def ask(self, name: str, path: str) -> list[dict[str, Any]]:
        """The items of a list that the API returns to this person."""
        headers = {"Authorization": f"Bearer {self.tokens[name]}"}
        address = self.address.removesuffix("/") + path
        items: list[dict[str, Any]] = []
        after = ""
        while True:
            with urllib.request.urlopen(urllib.request.Request(address + after, headers=headers)) as answer:
                part = json.load(answer)
            items += part["items"]
            if "next" not in part:
                return items
            after = "&after=" + urllib.parse.quote(part["next"])

    def _close_peers(self) -> None:
        self._stop.set()
        self._thread.join()
        for peer in self.peers:
            peer.socket.shutdown()

    def close(self) -> None:
        self._close_peers()
        self.stop_broker()

    def _count(self, condition: str) -> int:
        with closing(sqlite3.connect(self.database)) as database:
            (count,) = database.execute(f"SELECT COUNT(*) FROM jobs WHERE {condition}").fetchone()
        return int(count)

    def _serve(self) -> None:
        """Receives everyone's messages, and answers pings."""
        sockets = {peer.socket.sock: peer for peer in self.peers}
        while not self._stop.is_set():
            readable, _, _ = select.select(list(sockets), [], [], 0.05)
            for ready in readable:
                peer = sockets[ready]
                try:
                    opcode, data = peer.socket.recv_data(control_frame=True)
                except (OSError, websocket.WebSocketException):
                    del sockets[ready]
                    continue
                if opcode == websocket.ABNF.OPCODE_BINARY:
                    ((kind, body),) = msgpack.unpackb(data).items()
                    peer.hears(kind, body)


@contextmanager
def classroom(prefix: str = "") -> Iterator[Classroom]:
    place = Place.create()
    room = Classroom(place, prefix)
    room.fill()
    try:
        yield room
    finally:
        room.close()
        left = place.close()
        assert not left, f"Processes left behind: {left}"


def pictures(folder: Path) -> None:
    """Screenshots of every dashboard page as a TA sees it, light and dark, wide and narrow."""
    from playwright.sync_api import sync_playwright

    from end_to_end.lab import CHROMIUM, FLAGS

    folder.mkdir(parents=True, exist_ok=True)
    with classroom() as room, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for scheme, width in (("light", 1440), ("dark", 1440), ("light", 420)):
            context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
            page = context.new_page()
            page.goto(room.page("root"))
            jobs = page.locator("#queue a, .slot a").evaluate_all("links => links.map((link) => link.href)")
            pages = {"now": room.address, "running": jobs[0], "waiting": jobs[-1]}
            names = ("people", "workers", "courses", "capacity", "audit", "course?name=ml101")
            pages |= {name.split("?")[0]: room.address + name for name in names}
            for name, address in pages.items():
                page.goto(address)
                page.screenshot(path=folder / f"{name}-{scheme}-{width}.png")
            context.close()
        browser.close()
