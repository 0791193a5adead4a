"""`baton plan` and `baton bench latency`: the guide's numbers, a course's own past, and measured cells."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
from end_to_end import Place, Service
from end_to_end.service import run_binary

GUIDE = Path(__file__).parent.parent / "docs/guides/how-many-gpus.md"
BLOCK = re.compile(r"```console\n\$ (baton .*)\n((?:.*\n)*?)```\n")

WRITE = "BATON_WRITE_GOLDEN" in os.environ

PEOPLE = 20
EDIT = 120.0
RUN = 8.0
LONGEST = 32.0
HAND_OVER = 0.05


COMMANDS = [command for command, _ in BLOCK.findall(GUIDE.read_text())]


def test_the_guide_has_numbers() -> None:
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.removeprefix("baton plan "))
def test_numbers_of_the_guide_are_said_again(place: Place, command: str) -> None:
    """With BATON_WRITE_GOLDEN=1, the guide is rewritten; then the sentences around the numbers must be checked."""
    said = run_binary(place, *shlex.split(command)[1:]).stdout
    guide = GUIDE.read_text()
    if WRITE:
        shown = f"```console\n$ {command}\n{said}```\n"
        guide = BLOCK.sub(lambda block: shown if block[1] == command else block[0], guide)
        GUIDE.write_text(guide)
    assert dict(BLOCK.findall(guide))[command] == said


@pytest.fixture
def course() -> Iterator[Service]:
    """A broker with a worker, and with a past: one GPU used in order of arrival, for two days."""
    service = Service.create()
    service.start_broker()
    fill(service.data / "broker.db", int(time.time()) * 1000)
    service.start_worker(slots=1)
    yield service
    left = service.close()
    assert not left, left


def fill(database: Path, now_ms: int) -> None:
    draw = random.Random(7)
    begin = now_ms / 1000 - 48 * 3600
    submits = sorted((begin + draw.expovariate(1 / EDIT), person) for person in range(PEOPLE))
    free, rows = begin, []
    while True:
        submitted, person = submits.pop(0)
        started = max(submitted, free) + HAND_OVER
        run = draw.expovariate(1 / RUN)
        stopped = run > LONGEST
        finished = free = started + min(run, LONGEST)
        if finished > now_ms / 1000:
            break
        rows.append((submitted, started, finished, "cancelled" if stopped else "ok", person))
        submits.append((finished + draw.expovariate(1 / EDIT), person))
        submits.sort()
    insert(database, rows)


def insert(database: Path, rows: list[tuple[float, float | None, float | None, str | None, int]]) -> None:
    """Cells with their times of submission, start and end, outcome and person; None for what has not happened."""

    def milliseconds(seconds: float | None) -> int | None:
        return None if seconds is None else round(seconds * 1000)

    columns = "job, sequence, notebook, notebook_name, owner, course, state, outcome, closed, priority"
    times = "submitted_ms, started_ms, finished_ms, run_ms"
    values = "?, ?, ?, 'a.ipynb', ?, '', 'finished', ?, 1, ?, ?, ?, ?, ?"
    connection = sqlite3.connect(database, timeout=60)
    connection.executemany(
        f"INSERT INTO jobs ({columns}, {times}) VALUES ({values})",
        [
            (
                uuid.uuid4().bytes,
                number,
                uuid.uuid4().bytes,
                f"person {person}",
                outcome,
                msgpack.packb("normal"),
                *map(milliseconds, (submitted, started, finished, started and finished and finished - started)),
            )
            for number, (submitted, started, finished, outcome, person) in enumerate(rows, 1)
        ],
    )
    connection.commit()
    connection.close()


def test_a_course_is_estimated_from_its_own_past_and_its_waits_are_predicted(course: Service) -> None:
    report = course.place.folder / "report.html"
    said = run_binary(course.place, "plan", "--from-broker", "--json", "--report", str(report), **course.environment)
    assert said.returncode == 0, said.stderr
    told = json.loads(said.stdout)
    assert (told["people"], told["gpus"], told["places"]) == (PEOPLE, 1, 1)
    assert told["mean_seconds"]["run"] == pytest.approx(RUN, rel=0.05)
    assert told["mean_seconds"]["edit"] == pytest.approx(EDIT, rel=0.05)
    assert told["mean_seconds"]["hand_over"] == pytest.approx(HAND_OVER, rel=0.1)
    seen, as_they_were, exponential, more = told["rows"]
    for predicted in (as_they_were, exponential):
        for what in ("wait_mean_seconds", "wait_p90_seconds", "wait_p99_seconds"):
            assert predicted[what] == pytest.approx(seen[what], rel=0.25), what
    assert more["what"] == "with 1 GPU more"
    assert more["wait_mean_seconds"] < 0.1 * seen["wait_mean_seconds"]
    assert report.read_text().count("<svg") == 2


def test_the_capacity_page_holds_the_course_against_its_prediction(course: Service) -> None:
    page = course.answers("/capacity")
    for expected in (
        "of the last hour waited",
        "If no one leaves, expect to wait",
        "The waits of the last hour",
        "With 2 GPUs it is",
        "predicted, times as they were",
        "with 1 GPU more",
        "differ by",
    ):
        assert expected in page, expected
    assert page.count('class="plot"') == 2


def test_a_broker_without_a_past_says_what_to_do() -> None:
    service = Service.create()
    try:
        service.start_broker()
        for arguments, sentence in (
            ([], "hint: give it with --gpus"),
            (["--gpus", "1"], "The history has no cells yet"),
        ):
            said = run_binary(service.place, "plan", "--from-broker", *arguments, **service.environment)
            assert said.returncode == 1
            assert sentence in said.stderr
        now = time.time()
        stopped_in_line = [(now - 60, None, now - 50, "cancelled", 1)]
        insert(service.data / "broker.db", [(now - 90, now - 89, now - 80, "ok", 1), *stopped_in_line])
        said = run_binary(service.place, "plan", "--from-broker", "--gpus", "1", **service.environment)
        assert said.returncode == 1
        assert "Only 1 cell of the history ran to its end, and an estimate needs at least 20" in said.stderr
        assert "hint: use more --days" in said.stderr
    finally:
        assert not service.close()


def test_what_a_cell_adds_is_measured_part_by_part() -> None:
    service = Service.create()
    try:
        service.start_broker()
        service.start_worker()
        arguments = ("bench", "latency", "--most", "1MB", "--runs", "1")
        said = run_binary(service.place, *arguments, "--json", **service.environment)
        assert said.returncode == 0, said.stderr
        told = json.loads(said.stdout)
        rows = {(row["megabytes"], row["state"]): row for row in told["rows"]}
        assert list(rows) == [(0, "cold"), (0, "warm"), (1, "cold"), (1, "warm"), (1, "1 % changed")]
        for row in rows.values():
            parts = sum(row[part] for part in ("snapshot", "move", "wait", "run", "return"))
            assert parts == pytest.approx(row["total"], abs=0.05)
        changed = rows[1, "1 % changed"]
        assert told["hand_over_seconds"] == changed["move"] + changed["return"]
        assert told["cold_seconds"] == rows[1, "cold"]["adds"]
        latency = service.place.work / "latency.json"
        latency.write_text(said.stdout)
        said = run_binary(service.place, "plan", "--users", "2", "--json", "--latency", str(latency))
        assert json.loads(said.stdout)["mean_seconds"]["hand_over"] == pytest.approx(told["hand_over_seconds"])
    finally:
        assert not service.close()
