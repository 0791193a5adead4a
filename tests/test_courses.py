"""A course on one broker: people with their own tokens, limits, budgets, and messages for those who wait."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from end_to_end import Kernel, Service
from end_to_end.service import run_binary
from end_to_end.waiting import wait_until

RESET = datetime.now() + timedelta(days=3)
"""Budgets are renewed on this weekday, three days from now, so never while the tests run."""

COURSES = f"""
[course.ml101]
time_limit = "1m"
longest_time_limit = "2m"
budget = {{ gpu_time = "1h", reset = "{RESET:%a} 04:00" }}

[course.art]
paused = "back on Monday"
message = "Ask in room 5"
"""

LEFT = r"5[5-9] min( \d+ s)? of 1 h"
"""After short cells, which take longer on a slow machine."""

HOLD = "import os, time\nprint('runs', flush=True)\nwhile not os.path.exists('go'):\n    time.sleep(0.02)"


class Course:
    """A broker that knows its people, each of whom has notebooks."""

    def __init__(self, service: Service, new_kernel: Callable[..., Kernel]) -> None:
        self.service = service
        self._new_kernel = new_kernel
        self._people = service.place.folder / "people.toml"
        self.courses = service.place.folder / "courses.toml"
        self.courses.write_text(COURSES)
        self._tokens: dict[str, Path] = {}
        for name, role, of in (
            ("ada", "--course", "ml101"),
            ("bob", "--course", "art"),
            ("tia", "--staff-of", "ml101"),
        ):
            self._tokens[name] = self._add(name, role, of)
        self.start_broker()
        service.start_worker(slots=1)

    def start_broker(self, **environment: str) -> None:
        files = {"PEOPLE": self._people, "COURSES": self.courses}
        environment |= {f"BATON_BROKER_{kind}_FILE": str(path) for kind, path in files.items()}
        self.service.start_broker(**environment)

    def _add(self, name: str, role: str, course: str) -> Path:
        options = (role, course, "--people-file", str(self._people))
        said = run_binary(self.service.place, "people", "add", name, *options)
        assert said.returncode == 0, said.stderr
        file = self.service.place.folder / f"{name}.token"
        file.write_text(said.stdout)
        return file

    def join_art(self) -> None:
        """Ada joins a second course."""
        people = self._people.read_text()
        self._people.write_text(people.replace('"ml101" = "student"', '"ml101" = "student", "art" = "student"'))
        wait_until(lambda: re.search(r"\bart\b", self.says("courses", name="ada")), "the second course is known")

    def token(self, name: str) -> str:
        return self._tokens[name].read_text().strip()

    def asks(self, *arguments: str) -> Any:
        """The JSON output of a command, through the broker's own socket."""
        return json.loads(self.says(*arguments))

    def says(self, *arguments: str, name: str | None = None) -> str:
        said = self._run(arguments, name)
        assert said.returncode == 0, said.stderr
        return said.stdout

    def fails(self, *arguments: str, name: str) -> str:
        said = self._run(arguments, name)
        assert said.returncode == 1, said.stdout
        return said.stdout + said.stderr

    def _run(self, arguments: tuple[str, ...], name: str | None) -> subprocess.CompletedProcess[str]:
        token = {"BATON_TOKEN_FILE": str(self._tokens[name])} if name else {}
        address = {"BATON_BROKER_ADDRESS": f"unix:{self.service.socket}"}
        return run_binary(self.service.place, *arguments, **address, **token)

    def notebook(self, name: str, **environment: str) -> Kernel:
        token = {"BATON_TOKEN_FILE": str(self._tokens[name])} if name in self._tokens else {}
        return self.service.kernel(self._new_kernel, **token, **environment)


@pytest.fixture
def course(service: Service, new_kernel: Callable[..., Kernel]) -> Course:
    return Course(service, new_kernel)


def test_a_course_with_limits_and_a_budget(course: Course) -> None:
    ada = course.notebook("ada")
    ada.run("values = [1]").ok()
    done = ada.gpu("values.append(2)\nvalues").ok()
    assert done.value == "[1, 2]"
    assert re.search(rf", peak \S+ MiB of main memory\. {LEFT} left this week$", done.summary), done.summary

    refused = ada.run("%%gpu --timeout 10m\nvalues.append(3)")
    assert refused.error is not None
    text = refused.plain_traceback
    assert "asks for 10 min, but ml101 allows at most 2 min" in text
    assert "Your variables are as they were before the cell" in text
    assert "hint: use %%gpu --timeout 2m" in text
    assert ada.run("%%gpu --timeout 2m --priority low\nvalues").ok().value == "[1, 2]"
    used = course.asks("usage", "--json", "--person", "ada", "--course", "ml101")
    assert [(row["person"], row["course"], row["runs"]) for row in used] == [("ada", "ml101", 2)]
    assert ',"ada","ml101",' in course.service.answers("/people.csv")

    course.courses.write_text(COURSES.replace('"1h"', '"1s"'))
    wait_until(lambda: '"of_ms":1000' in course.service.answers("/v1/courses"), "the broker has read the file again")
    ada.gpu("import time\ntime.sleep(1.2)")
    spent = ada.gpu("values.append(4)")
    assert "Your GPU time in ml101 is used up" in spent.plain_traceback
    assert f"{RESET:%A} 04:00" in spent.plain_traceback
    assert ada.evaluate("values") == [1, 2]


def test_a_refused_cell_runs_after_staff_granted_more(course: Course) -> None:
    budget = f'{{ gpu_time = "1s", reset = "{RESET:%a} 04:00" }}'
    rules = f'[course.ml101]\nmost_allowance = "2h"\nbudget = {budget}\n'
    course.courses.write_text(rules)
    wait_until(lambda: '"of_ms":1000' in course.service.answers("/v1/courses"), "the broker has read the file again")
    ada = course.notebook("ada")
    ada.run("values = [1]").ok()
    assert ada.gpu("import time\ntime.sleep(5)").error is not None
    cell = "values.append(2)\nvalues"
    refused = ada.gpu(cell).plain_traceback
    assert "Your GPU time in ml101 is used up: 1 s of 1 s this week. " in refused
    assert "hint: ordinary cells work until then; ask your course staff if you need more" in refused

    grant = ("grant", "ada", "1h")
    assert "Only staff of its course may do this" in course.fails(*grant, name="ada")
    assert "at most 2 h together" in course.fails("grant", "ada", "3h", name="tia")
    granted = course.says(*grant, name="tia")
    assert re.search(r"^ada +1 h +.* of 1 h left this week \(1 h of it granted\) +tia$", granted, re.MULTILINE), granted
    done = ada.gpu(cell).ok()
    assert done.value == "[1, 2]"
    left = rf"{LEFT} left this week \(1 h of it granted\)"
    assert re.search(rf"\. {left}$", done.summary), done.summary
    assert re.search(rf"^GPU time after it: {left}$", ada.run("%gpu_status").ok().stdout, re.MULTILINE)
    assert course.says("grant", "--list", name="ada") == course.says("grant", "--list", name="tia")
    revoked = course.says("grant", "ada", "none", "--course", "ml101", name="tia")
    assert revoked == "No additional GPU time is granted\n"
    assert "used up" in ada.gpu(cell).plain_traceback
    assert ada.evaluate("values") == [1, 2]
    assert [act["action"] for act in course.asks("audit", "--json")] == ["revoke", "grant"]


def test_the_line_says_why_and_how_long(course: Course) -> None:
    first, second = course.notebook("ada", JPY_SESSION_NAME="/work/first.ipynb"), course.notebook("ada")
    bob = course.notebook("bob")
    running = first.begin(f"%%gpu\n{HOLD}")
    running.wait_for_text("runs")
    first_in_line = second.begin("%%gpu\n1")
    lines = {"own": "Waiting for your other %%gpu cell (first.ipynb) to finish"}
    lines["paused"] = "Waiting for a worker: your course is paused (back on Monday)\nAsk in room 5"
    first_in_line.wait_for(lambda result: lines["own"] in result.notices, "the second notebook waits for the first")
    paused = bob.begin("%%gpu\n2")
    paused.wait_for(lambda result: lines["paused"] in result.notices, "a paused course says so")
    jobs = course.asks("jobs", "--json", "--state", "queued")
    assert [job["waiting"]["rule"] for job in jobs] == ["course_paused", "own_job_runs"]
    status = course.asks("status", "--json")
    assert (status["health"], [worker["jobs"] for worker in status["workers"]]) == ("ready", [1])
    assert {job["job"] for job in jobs} < {job["job"] for job in status["jobs"]}
    why = course.says("explain", jobs[1]["job"][-8:], name="ada")
    assert "of ada (ml101, " in why
    assert "It waits: another cell of the same person runs (first.ipynb)." in why
    assert "Workers run 1 cell and take 1 at once." in why
    assert "There is no cell" in course.fails("explain", jobs[1]["job"][-8:], name="bob")
    course.courses.write_text("")
    waits = "Waiting for a worker: 2nd in line"
    paused.wait_for(lambda result: any(line.startswith(waits) for line in result.notices), "the pause is over")
    (course.service.place.work / "go").touch()
    running.finish().ok()
    first_in_line.finish().ok()
    assert paused.finish().ok().value == "2"


def test_staff_act_and_the_student_reads_it(course: Course) -> None:
    first, second = course.notebook("ada"), course.notebook("ada")
    running = first.begin(f"%%gpu\nreached = 1\n{HOLD}")
    running.wait_for_text("runs")
    waiting = second.begin("%%gpu\n1")
    line = "Waiting for your other %%gpu cell"
    waiting.wait_for(lambda result: line in "\n".join(result.notices), "the second notebook waits")
    held, started = (course.asks("jobs", "--json", "--state", state)[0]["job"] for state in ("queued", "started"))
    assert "Only staff" in course.fails("hold", held, "--reason", "room 5", name="ada")
    course.says("hold", held, "--reason", "Come to room 5")
    line = "Waiting for a worker: your course staff hold this cell back (Come to room 5)"
    waiting.wait_for(lambda result: line in "\n".join(result.notices), "the student reads the reason")
    course.says("cancel", held, "--reason", "it is last week's")
    stopped = waiting.finish()
    words = "CellStopped: Your course staff stopped this cell (it is last week's) before it ran"
    assert words in stopped.plain_traceback
    assert "Your variables are as they were before the cell" in stopped.plain_traceback

    course.says("cancel", started, "--reason", "the lecture begins")
    interrupted = running.finish()
    assert interrupted.error is not None
    assert "Your course staff stopped this cell (the lecture begins)" in interrupted.plain_traceback
    assert first.evaluate("reached") == 1
    assert [act["action"] for act in course.asks("audit", "--json")] == ["cancel", "cancel", "hold"]


def test_a_stranger_is_told_so(course: Course) -> None:
    file = course.service.place.folder / "stranger.token"
    file.write_text("0" * 64)
    stranger = course.notebook("nobody", BATON_TOKEN_FILE=str(file))
    stranger.run("x = 1").ok()
    refused = stranger.gpu("x = 2")
    assert "This notebook cannot use the GPU service" in refused.plain_traceback
    assert "Get a new one from your course staff" in refused.plain_traceback
    assert stranger.evaluate("x") == 1


def test_data_that_staff_published_is_brought_by_nobody_else(course: Course) -> None:
    import numpy as np

    service = course.service
    data = service.place.work / "data.npy"
    np.save(data, np.random.default_rng(1).random(400_000))
    assert "Only staff" in course.fails("publish", "ml101", str(data), name="ada")
    assert "There is no course art" in course.fails("publish", "art", str(data), name="tia")
    published = r"^data\.npy +6\.1 MiB +tia "
    assert re.search(published, course.says("publish", "ml101", str(data), name="tia"), re.MULTILINE)
    partly = course.fails("publish", "ml101", str(data), "missing.npy", name="tia")
    assert re.search(published, partly, re.MULTILINE), partly
    assert "Failed to publish missing.npy" in partly

    def large_chunks() -> set[str]:
        # While a chunk is written, it has another name.
        named = [path for path in (service.data / "chunks").rglob("*") if re.fullmatch("[0-9a-f]{64}", path.name)]
        return {path.name for path in named if path.stat().st_size > 1 << 19}

    # Chunks start at the beginning of the file, and again at that of its array.
    there = large_chunks()
    assert len(there) == 6
    service.kill("worker-0")
    service.start_worker(slots=1, BATON_TRANSPORT="http", BATON_WORKER_FILES="mirror")
    ada = course.notebook("ada", BATON_TRANSPORT="http")
    ada.run("import numpy as np\nvalues = np.load('data.npy')\ntotal = values.sum()").ok()
    same = ada.gpu("(bool(values.sum() == total), len(open('data.npy', 'rb').read()))").ok()
    assert same.value == f"(True, {data.stat().st_size})"
    assert large_chunks() == there
    ada.run("own = values + 1").ok()
    ada.gpu("own.sum()").ok()
    assert len(large_chunks() - there) == 3
    listed = json.loads(course.says("publish", "ml101", "--list", "--json", name="ada"))
    assert [file["name"] for file in listed] == ["data.npy"]
    assert course.says("publish", "ml101", "--withdraw", "data.npy", name="tia") == "There are no public files\n"
    assert [act["action"] for act in course.asks("audit", "--json")] == ["withdraw", "publish", "publish"]


def test_one_notebook_too_many_says_so_and_runs_later(course: Course) -> None:
    course.service.kill("broker")
    course.start_broker(BATON_BROKER_PERSON_CONNECTION_LIMIT="1")
    first, second = course.notebook("ada"), course.notebook("ada")
    first.gpu("1").ok()
    second.run("x = 1").ok()
    refused = second.gpu("x = 2").plain_traceback
    assert (
        "This notebook cannot use the GPU service: "
        "You have reached this broker's limit of connected notebooks and live pages" in refused
    )
    assert "Your variables are as they were before the cell" in refused
    assert "hint: shut down notebooks that you do not use, then try again" in refused
    assert second.evaluate("x") == 1
    first.shutdown()
    wait_until(lambda: second.run("%%gpu\nx = 3", stop_on_error=False).error is None, "there is room")
    assert second.evaluate("x") == 3


def test_a_notebook_that_asks_too_often_waits_and_its_cell_runs(course: Course) -> None:
    course.service.kill("broker")
    course.start_broker(BATON_BROKER_CHUNK_REQUEST_RATE="2")
    ada = course.notebook("ada", BATON_TRANSPORT="http")
    ada.run("import numpy as np\nvalues = np.random.default_rng(1).random(400_000)").ok()
    ada.gpu("1").ok()
    token = course.token("ada")
    transport = httpx.HTTPTransport(uds=str(course.service.socket))
    with httpx.Client(transport=transport, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
        answers = (client.post("http://broker/v1/chunks/get", content=b"\x90") for _ in range(1000))
        too_often = next(answer for answer in answers if answer.status_code != 200)
    assert (too_often.status_code, too_often.headers["retry-after"]) == (429, "1")
    assert ada.gpu("values += 1\nfloat(values.sum())").ok().value == repr(ada.evaluate("float(values.sum())"))


def test_another_course_than_ones_own(course: Course) -> None:
    ada = course.notebook("ada", BATON_COURSE="art")
    refused = ada.gpu("1")
    assert "You are not in the course art; yours: ml101" in refused.plain_traceback
    assert "BATON_COURSE" in refused.plain_traceback


def test_a_notebook_stays_in_its_course_when_its_person_joins_another(course: Course) -> None:
    ada = course.notebook("ada", BATON_TRANSPORT="http")
    ada.run("import numpy as np\nvalues = np.random.default_rng(1).random(400_000)").ok()
    ada.gpu("values += 1").ok()
    course.join_art()
    assert ada.gpu("values += 1\nlen(values)").ok().value == "400000"
