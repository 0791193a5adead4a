"""Programs that run other people's notebooks unattended: nbgrader and jupyter-scheduler, on a course's GPUs."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import nbformat
import pytest
from end_to_end import Kernel, Place, Service, wait_until
from end_to_end.lab import address_of
from end_to_end.runs import HELD, printed
from end_to_end.service import run_binary
from nbformat.v4 import new_code_cell, new_notebook

TOOLS = Path(sys.prefix) / "batch"
KERNEL = {"name": "baton", "display_name": "Python (shared GPU)", "language": "python"}

SOLUTION = "%%gpu\ndef double(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION"
CHECK = "%%gpu\nassert double(21) == 42"
BLANK = "raise NotImplementedError()"
ANSWERS = {"right": "return x + x", "wrong": "return x", "blank": BLANK}
SUBMISSIONS = 9
SERVER_TOKEN = "token-of-the-server"


class Course:
    """A student, a grader on the staff, and a single slot."""

    def __init__(self, service: Service, new_kernel: Callable[..., Kernel]) -> None:
        self.service, self._new_kernel = service, new_kernel
        self._people = service.place.folder / "people.toml"
        self._tokens = {name: self._add(name, role) for name, role in (("ada", "--course"), ("tia", "--staff-of"))}
        service.start_broker(BATON_BROKER_PEOPLE_FILE=str(self._people))
        service.start_worker(slots=1)

    def _add(self, name: str, role: str) -> Path:
        said = run_binary(self.service.place, "people", "add", name, role, "ml101", "--people-file", str(self._people))
        assert said.returncode == 0, said.stderr
        file = self.service.place.folder / f"{name}.token"
        file.write_text(said.stdout)
        return file

    def environment(self, name: str) -> dict[str, str]:
        return self.service.access | {"BATON_TOKEN_FILE": str(self._tokens[name])}

    def notebook(self, name: str) -> Kernel:
        return self._new_kernel(at=self.service.place, **self.environment(name))

    def jobs(self) -> list[dict[str, Any]]:
        said = run_binary(self.service.place, "jobs", "--json", "--limit", "100000", **self.environment("tia"))
        assert said.returncode == 0, said.stderr
        rows: list[dict[str, Any]] = json.loads(said.stdout)
        return rows


@pytest.fixture
def course(service: Service, new_kernel: Callable[..., Kernel]) -> Course:
    return Course(service, new_kernel)


class Grading:
    """The folder of a course in nbgrader, with one assignment."""

    def __init__(self, place: Place, **environment: str) -> None:
        self.folder = place.work / "grading"
        self.environment = place.environment | environment | {"PYTHONPATH": str(TOOLS)}
        programs = Path(sys.executable).parent  # nbgrader starts alembic
        self.environment["PATH"] = f"{programs}:{self.environment['PATH']}"
        source = self.folder / "source/ps1"
        source.mkdir(parents=True)
        settings = ["c = get_config()", "c.CourseDirectory.course_id = 'ml101'", "c.ExecutePreprocessor.timeout = 3600"]
        (self.folder / "nbgrader_config.py").write_text("\n".join(settings))
        cells = [graded(SOLUTION, "double", solution=True), graded(CHECK, "check", grade=True, locked=True, points=2)]
        nbformat.write(new_notebook(metadata={"kernelspec": KERNEL}, cells=cells), source / "ps1.ipynb")
        self("generate_assignment", "ps1")

    def __call__(self, *arguments: str) -> str:
        said = self.begin(*arguments)
        output, _ = said.communicate(timeout=200)
        assert said.returncode == 0, output
        return output

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(
            [sys.executable, "-m", "nbgrader", *arguments], cwd=self.folder, env=self.environment, **options
        )

    def submit(self, student: str, answer: str) -> None:
        release = (self.folder / "release/ps1/ps1.ipynb").read_text()
        assert BLANK in release
        submitted = self.folder / f"submitted/{student}/ps1"
        submitted.mkdir(parents=True)
        (submitted / "ps1.ipynb").write_text(release.replace(BLANK, answer))

    def scores(self) -> dict[str, float]:
        self("export")
        with (self.folder / "grades.csv").open() as file:
            return {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}


def graded(source: str, grade_id: str, **marks: Any) -> nbformat.NotebookNode:
    usual = {"schema_version": 3, "locked": False, "grade": False, "solution": False, "task": False}
    return new_code_cell(source, metadata={"nbgrader": {**usual, "grade_id": grade_id, **marks}})


def test_submissions_are_graded_while_a_class_works(course: Course) -> None:
    """Each cell of the class runs before the grader's waiting cells, and the grades are right."""
    grading = Grading(course.service.place, **course.environment("tia"), BATON_PRIORITY="low")
    expected = {}
    for number in range(SUBMISSIONS):
        kind = list(ANSWERS)[number % len(ANSWERS)]
        grading.submit(f"student-{number}", ANSWERS[kind])
        expected[f"student-{number}"] = 2.0 if kind == "right" else 0.0

    ada, other = course.notebook("ada"), course.notebook("tia")
    sign = course.service.place.signs / "graded"
    holding = other.begin("%%gpu\n" + HELD.format(sign=sign))
    holding.wait_for_text("begun")
    autograding = grading.begin("autograde", "ps1")
    wait_until(lambda: len(course.jobs()) == 2, "the first cell of the grader waits")
    first = ada.begin("%%gpu\n'first'")
    wait_until(lambda: len(course.jobs()) == 3, "so does one of the class, which came later")
    sign.touch()
    first.finish()
    while autograding.poll() is None:
        assert ada.gpu("sum(range(1_000_000))").ok().value == "499999500000"
    output, _ = autograding.communicate(timeout=60)
    assert autograding.returncode == 0, output
    assert grading.scores() == expected

    jobs = course.jobs()
    low = [job for job in jobs if job["priority"] == "low"]
    assert {(job["person"], job["course"]) for job in low} == {("tia", "ml101")}
    assert len(low) == 2 * SUBMISSIONS
    of_class = [job for job in jobs if job["person"] == "ada"]
    assert min(job["started_ms"] for job in low) >= of_class[-1]["finished_ms"]
    overtaken = [
        (job["job"], other["job"])
        for job in of_class
        for other in low
        if job["submitted_ms"] < other["submitted_ms"] and other["started_ms"] < job["started_ms"]
    ]
    assert not overtaken


@contextmanager
def scheduler(course: Course, folder: Path) -> Iterator[httpx.Client]:
    """A student's Jupyter server with jupyter-scheduler."""
    place = course.service.place
    settings = {
        "ip": "127.0.0.1",
        "port": "0",
        "root_dir": str(folder),
        "allow_root": "True",
        "open_browser": "False",
        "jpserver_extensions": '{"jupyter_scheduler": True}',
    }
    options = [f"--ServerApp.{name}={value}" for name, value in settings.items()]
    environment = place.environment | course.environment("ada") | {"PYTHONPATH": str(TOOLS)}
    with (place.folder / "server.log").open("wb") as log:
        command = [sys.executable, "-m", "jupyter_server", *options, f"--IdentityProvider.token={SERVER_TOKEN}"]
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        address = wait_until(lambda: address_of(place), "the server listens")
        headers = {"Authorization": f"token {SERVER_TOKEN}"}
        with httpx.Client(base_url=address, headers=headers, timeout=60) as client:
            yield client
    finally:
        server.terminate()
        server.wait(timeout=60)


def test_a_scheduled_notebook_runs_on_the_gpus_of_the_course(course: Course) -> None:
    folder = course.service.place.work / "scheduled"
    folder.mkdir()
    parameters = new_code_cell("epochs = 1", metadata={"tags": ["parameters"]})
    cells = [parameters, new_code_cell("%%gpu\nprint('trained for', epochs)\nmodel = [1, 2]"), new_code_cell("model")]
    nbformat.write(new_notebook(metadata={"kernelspec": KERNEL}, cells=cells), folder / "night.ipynb")
    with scheduler(course, folder) as client:
        (environment,) = client.get("scheduler/runtime_environments").json()
        job = {
            "input_uri": "night.ipynb",
            "name": "night",
            "output_formats": ["ipynb"],
            "runtime_environment_name": environment["name"],
            "parameters": {"epochs": 3},
        }
        made = client.post("scheduler/jobs", json=job)
        assert made.is_success, made.text
        url = f"scheduler/jobs/{made.json()['job_id']}"
        ended = {"COMPLETED", "FAILED"}  # a job that has not begun is STOPPED
        wait_until(lambda: client.get(url).json()["status"] in ended, "the job has ended")
        told = client.get(url).json()
        assert told["status"] == "COMPLETED", told
    # The scheduler's page downloads the result from there.
    (result,) = (course.service.place.folder / "home").rglob("scheduler_staging_area/*/night-*.ipynb")
    ran = nbformat.read(result, as_version=4)
    assert "trained for 3\n" in [printed(cell) for cell in ran.cells]
    assert ran.cells[-1].outputs[0].data["text/plain"] == "[1, 2]"
    (row,) = course.jobs()
    assert (row["person"], row["kind"], row["outcome"]) == ("ada", "cell", "ok")
    assert re.fullmatch("[0-9a-f-]+", row["job"])
