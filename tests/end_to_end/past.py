"""Writes a past week of a class into the broker's database."""

from __future__ import annotations

import random
import sqlite3
import time
import uuid
from contextlib import closing
from pathlib import Path

import msgpack

NAMES = """Ada Bo Carla Dmitri Emil Farah Gus Hana Ines Jonas Kofi Lena Mateo Nia Olga Pavel Quinn Rosa Sven Tomoko Uma
Viktor Wanda Xia Yusuf Zoe Anton Bella Chen Dora Elif Finn Greta Hugo Ida Jakub Kira Luis Mina Noor Otto Priya Remy
Sara Theo Ulla Vera Wim Yara Zeno Amir Britt Cleo Dara Edda Fritz Gita Heidi Ivan Jule""".split()
NOTEBOOKS = ("03-digits.ipynb", "assignment-2.ipynb", "train-a-model.ipynb", "attention.ipynb")
MINUTE = 60_000
DAY = 24 * 60 * MINUTE
GIB = 1 << 30


def write_past(path: Path) -> None:
    """A week of runs, with a lecture in the middle of each day."""
    dice = random.Random(5)
    now = int(time.time() * 1000)
    sequence = 0
    with closing(sqlite3.connect(path)) as database, database:
        for day in range(7):
            for _ in range(90):
                sequence += 1
                write_run(database, dice, sequence, now - day * DAY - dice.randrange(DAY - MINUTE))
        for minute in range(24 * 60):
            at = now // MINUTE - minute
            hour = (at // 60) % 24
            busy = 0.15 + 0.85 * max(0.0, 1 - abs(hour - 14) / 5) + dice.uniform(-0.05, 0.1)
            waiting = max(0, int((busy - 0.75) * 90))
            running = min(8, int(busy * 9))
            database.execute("INSERT OR REPLACE INTO minutes VALUES (?, 1, ?, ?, 8)", (at, running, waiting))


def write_run(database: sqlite3.Connection, dice: random.Random, sequence: int, submitted: int) -> None:
    person = NAMES[int(dice.triangular(0, 60, 6))]
    course = dice.choice(["ml101", "ml101", "vision"])
    waited, ran = int(dice.expovariate(1 / 25_000)), int(dice.expovariate(1 / 70_000)) + 900
    outcome = dice.choices(["ok", "error", "cancelled", "timed_out"], [20, 3, 1, 1])[0]
    error = None
    if outcome == "error":
        lines = ["Traceback (most recent call last)", "RuntimeError: mat1 and mat2 shapes cannot be multiplied"]
        error = msgpack.packb({"name": "RuntimeError", "value": "shapes", "traceback": lines, "hint": None})
    started = submitted + waited
    values = {
        "job": uuid.UUID(int=sequence).bytes,
        "sequence": sequence,
        "notebook": uuid.uuid4().bytes,
        "notebook_name": dice.choice(NOTEBOOKS),
        "owner": person,
        "course": course,
        "state": "finished",
        "outcome": outcome,
        "closed": 1,
        "worker_name": dice.choice(["gpu-1", "gpu-2"]),
        "priority": msgpack.packb("normal"),
        "submitted_ms": submitted,
        "assigned_ms": started - waited // 20,
        "started_ms": started,
        "finished_ms": started + ran,
        "run_ms": ran,
        "peak_memory_bytes": dice.randrange(GIB, 9 * GIB),
        "execution_count": dice.randrange(1, 60),
        "sent_bytes": dice.randrange(1000, 40_000_000),
        "returned_bytes": dice.randrange(1000, 4_000_000),
        "error": error,
    }
    names, marks = ", ".join(values), ", ".join("?" * len(values))
    database.execute(f"INSERT INTO jobs ({names}) VALUES ({marks})", list(values.values()))
    database.execute(
        "INSERT INTO usage VALUES (?, ?, ?, ?, 1) ON CONFLICT DO UPDATE SET run_ms = run_ms + ?, runs = runs + 1",
        (submitted // DAY, person, course, ran, ran),
    )


def age(path: Path) -> None:
    """Makes waiting and running jobs some minutes older; the cells of a paused course become the oldest."""
    with closing(sqlite3.connect(path)) as database, database:
        rows = database.execute("SELECT job, state, course FROM jobs WHERE closed = 0 ORDER BY sequence").fetchall()
        for number, (job, state, course) in enumerate(rows):
            older = 3 * MINUTE - (14_000 if state == "started" else 2_500) * number
            older += 8 * MINUTE if course == "thesis" else 0
            database.execute(
                "UPDATE jobs SET submitted_ms = submitted_ms - ?, assigned_ms = assigned_ms - ?, "
                "started_ms = started_ms - ? WHERE job = ?",
                (older, older - 12_000, older - 14_000, job),
            )
