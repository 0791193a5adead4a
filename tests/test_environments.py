"""Environments of courses: where their cells run, how they are built, and the same beside the notebook."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from end_to_end import Kernel, Service
from end_to_end.service import BINARY, run_binary
from end_to_end.waiting import wait_until
from end_to_end.wheels import Wheels, python_with

COURSES = """
jobs_per_person = 9

[course.one]
environment = "one"

[course.two]
environment = "two"

[course.three]
environment = "three"
"""

VERSION = "import course_tool\nprint(course_tool.VERSION)"


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """They are packed once for all tests."""
    return Wheels.with_what_baton_needs(tmp_path_factory.mktemp("wheels"))


@pytest.fixture
def wheels(packed: Wheels, service: Service) -> Wheels:
    """Where sandboxed builds may read them."""
    folder = service.place.signs / "wheels"
    folder.mkdir()
    for wheel in packed.folder.iterdir():
        (folder / wheel.name).hardlink_to(wheel)
    wheels = Wheels(folder)
    for version in ("1.0", "2.0", "3.0"):
        wheels.make("course_tool", version)
    return wheels


class Class:
    """Courses with environments, on a broker and workers of their own."""

    def __init__(self, service: Service, new_kernel: Callable[..., Kernel]) -> None:
        self.service = service
        self._new_kernel = new_kernel
        self.folder = service.place.folder
        (self.folder / "courses.toml").write_text(COURSES)
        service.start_broker(BATON_BROKER_COURSES_FILE=str(self.folder / "courses.toml"))

    def start_worker(self, *sections: str, name: str | None = None, **environment: str) -> str:
        configuration = self.folder / "worker.toml"
        configuration.write_text("\n".join(sections))
        return self.service.start_worker(name, BATON_CONFIG=str(configuration), **environment)

    def notebook(self, course: str, name: str = "baton", **environment: str) -> Kernel:
        return self.service.kernel(self._new_kernel, name=name, BATON_COURSE=course, **environment)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run_binary(self.service.place, *arguments, **(self.service.access | environment))

    def environments(self) -> dict[str, dict[str, Any]]:
        """What the one worker offers, by name."""
        said = self.run("workers", "--json")
        assert said.returncode == 0, said.stderr
        (worker,) = json.loads(said.stdout)
        return {offered["name"]: offered for offered in worker["machine"].get("environments", [])}

    def state(self, name: str) -> str:
        (state,) = self.environments()[name]["state"]
        return str(state)

    def wait_until_ready(self, *names: str) -> None:
        for name in names:
            wait_until(lambda name=name: self.state(name) == "ready", f"{name} is ready", seconds=60)  # type: ignore[misc]


@pytest.fixture
def course(service: Service, new_kernel: Callable[..., Kernel]) -> Class:
    return Class(service, new_kernel)


def test_cells_of_courses_run_side_by_side_in_their_environments(course: Class, wheels: Wheels) -> None:
    folder = course.folder
    python = python_with(folder / "one", wheels, "course_tool", "1.0")
    lock = wheels.lock(folder / "course-two.txt", course_tool="2.0")
    project = folder / "three"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "three"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["course_tool==3.0"]\n'
        f'[tool.uv]\nno-index = true\nfind-links = ["{wheels.folder}"]\n'
    )
    subprocess.run([BINARY.with_name("uv"), "lock", "--quiet", "--directory", project], check=True)
    course.start_worker(
        f'[environment.one]\npython = "{python}"',
        f'[environment.two]\nlock = "{lock}"',
        f'[environment.three]\nlock = "{project / "uv.lock"}"',
        slots=3,
    )
    gate = course.service.place.signs / "go"
    names = ["one", "two", "three"]
    notebooks = {name: course.notebook(name) for name in names}
    wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    cells = {name: notebook.begin(f"%%gpu\n{VERSION}\n{wait}") for name, notebook in notebooks.items()}
    for number, name in enumerate(names, start=1):
        cells[name].wait_for_text(f"{number}.0", seconds=60)
    gate.touch()
    for cell in cells.values():
        cell.finish().ok()
    found = course.environments()
    assert {name: offered["state"] for name, offered in found.items()} == {name: {"ready": {}} for name in names}
    assert ["lock" in found[name] for name in names] == [False, True, True]
    page = course.service.answers("/workers")
    assert "environment two (Python 3." in page, page

    plain = course.notebook("another")
    assert plain.gpu("import course_tool").error == ("ModuleNotFoundError", "No module named 'course_tool'")
    (course.folder / "courses.toml").write_text('[course.another]\nenvironment = "two"\n')
    wait_until(
        lambda: plain.run(f"%%gpu\n{VERSION}", stop_on_error=False).stdout == "2.0\n",
        "the notebook gets a session of the environment that its course has now",
    )
    assert plain.run("x = 5\n").error is None
    assert plain.gpu(f"x += 1\n{VERSION}\nx").ok().value == "6"


def test_a_lock_that_is_broken_is_no_failure_of_the_worker(course: Class, wheels: Wheels) -> None:
    lock = wheels.lock(course.folder / "two.txt", course_tool="2.0")
    whole = lock.read_text()
    lock.write_text(whole.replace("sha256:", "sha256:00"))
    (course.folder / "one.txt").write_text("course_tool==1.0\n")
    course.start_worker(
        f'[environment.one]\nlock = "{course.folder / "one.txt"}"', f'[environment.two]\nlock = "{lock}"'
    )
    wait_until(lambda: course.state("two") == "failed", "the build has failed", seconds=60)
    why = course.environments()["two"]["state"]["failed"]["reason"]
    assert why.startswith("uv could not install the lock: "), why
    assert "hash" in why.lower(), why
    assert why.endswith("hint: correct the lock"), why
    assert "one.txt has no hashes hint: write it anew" in course.environments()["one"]["state"]["failed"]["reason"]
    assert "environment two: failed (uv could not install the lock" in course.service.answers("/workers")
    assert course.notebook("another").gpu("1").ok().value == "1"
    waiting = course.notebook("two").begin(f"%%gpu\n{VERSION}")
    line = "worker-0 could not prepare two: uv could not install the lock"
    told = waiting.wait_for(lambda result: line in "\n".join(result.notices), "the line says why")
    assert "a worker that offers the environment two" in "\n".join(told.notices)
    lock.write_text(whole)
    waiting.wait_for_text("2.0", seconds=60)
    assert waiting.finish().ok().stdout == "2.0\n"


def test_a_build_that_was_killed_begins_anew_and_its_code_reaches_nothing(course: Class, wheels: Wheels) -> None:
    place = course.service.place
    go, secret = place.signs / "go", place.folder / "secret"
    secret.write_text("of the worker")
    wheels.make_source("course_built", go, secret)
    lock = wheels.lock(course.folder / "two.txt", course_built="1.0")
    builds = place.folder / "home/.cache/baton/environments"
    section = f'[environment.two]\nlock = "{lock}"'
    name = course.start_worker(section)

    def begun() -> list[Path]:
        return list(builds.rglob("begun"))

    wait_until(begun, "the package's own code runs", seconds=60)
    assert course.state("two") == "preparing"
    waiting = course.notebook("two").begin("%%gpu\nimport course_built\nprint(course_built.REACHED)")
    line = f"{name} is preparing two"
    waiting.wait_for(lambda result: line in "\n".join(result.notices), "the line says that it is being prepared")
    course.service.kill(name)
    wait_until(lambda: not building(place.processes()), "the build has ended with its worker")
    for file in begun():
        file.unlink()
    course.start_worker(section, name=name)
    wait_until(begun, "it is built anew", seconds=60)
    go.touch()
    waiting.wait_for_text("[", seconds=60)
    assert waiting.finish().ok().stdout == "[False, False]\n"
    assert not secret.with_name("secret.new").exists()
    assert [path.name for path in builds.glob("*/complete")] == ["complete"]
    assert not list(builds.glob("*/work/cache"))


def building(processes: list[psutil.Process]) -> list[str]:
    lines = []
    for process in processes:
        try:
            lines.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return [line for line in lines if "uv pip" in line or "build_wheel" in line or "/uv" in line]
