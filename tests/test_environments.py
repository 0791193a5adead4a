"""Environments of courses: where their cells run, how they are built, and the same environment beside the notebook."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from end_to_end import Kernel, Service
from end_to_end.place import SANDBOX, has_words
from end_to_end.root_images import make_image
from end_to_end.service import BINARY, on_small_disk, run_binary
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
    """Wheels that are packed once for all tests."""
    return Wheels.with_what_baton_needs(tmp_path_factory.mktemp("wheels"))


@pytest.fixture
def wheels(packed: Wheels, service: Service) -> Wheels:
    """The wheels where sandboxed builds may read them."""
    folder = service.place.signs / "wheels"
    folder.mkdir()
    for wheel in packed.folder.iterdir():
        (folder / wheel.name).hardlink_to(wheel)
    wheels = Wheels(folder)
    for version in ("1.0", "2.0", "3.0"):
        wheels.make("course_tool", version)
    return wheels


class Class:
    """Courses with environments, on a separate broker and workers."""

    def __init__(self, service: Service, new_kernel: Callable[..., Kernel]) -> None:
        self.service = service
        self._new_kernel = new_kernel
        self.folder = service.place.folder
        (self.folder / "courses.toml").write_text(COURSES)
        service.start_broker(BATON_BROKER_COURSES_FILE=str(self.folder / "courses.toml"))

    def start_worker(self, *sections: str, name: str | None = None, **options: Any) -> str:
        configuration = self.folder / "worker.toml"
        configuration.write_text("\n".join(sections))
        return self.service.start_worker(name, BATON_CONFIG=str(configuration), **options)

    def notebook(self, course: str, name: str = "baton", **environment: str) -> Kernel:
        return self.service.kernel(self._new_kernel, name=name, BATON_COURSE=course, **environment)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run_binary(self.service.place, *arguments, **(self.service.access | environment))

    def environments(self) -> dict[str, dict[str, Any]]:
        """The environments that the one worker offers, by name."""
        said = self.run("workers", "--json")
        assert said.returncode == 0, said.stderr
        (worker,) = json.loads(said.stdout)
        return {offered["name"]: offered for offered in worker["machine"].get("environments", [])}

    def state(self, name: str) -> str:
        (state,) = self.environments()[name]["state"]
        return str(state)

    def wait_until_ready(self, *names: str) -> None:
        for name in names:
            wait_until(lambda name=name: self.state(name) == "ready", f"{name} is ready")  # type: ignore[misc]

    def why_failed(self, name: str) -> str:
        """The reason why an environment could not be built, once that is known."""

        def reason() -> str:
            state = self.environments()[name]["state"]
            return str(state["failed"]["reason"]) if "failed" in state else ""

        return wait_until(reason, f"the build of {name} has failed")


@pytest.fixture
def course(service: Service, new_kernel: Callable[..., Kernel]) -> Class:
    return Class(service, new_kernel)


def test_the_first_session_of_an_environment_finds_its_libraries_loaded(course: Class, wheels: Wheels) -> None:
    wheels.make("pandas", "3.0")
    lock = wheels.lock(course.folder / "course-one.txt", pandas="3.0", course_tool="1.0")
    worker = course.start_worker(f'[environment.one]\nlock = "{lock}"')
    said = "Sessions start with these libraries loaded: pandas"
    wait_until(lambda: said in course.service.log(worker), "the library is loaded")
    notebook = course.notebook("one")
    assert notebook.gpu("import pandas\nprint(pandas.VERSION)").ok().stdout == "3.0\n"
    session = psutil.Process(notebook.session_pid)
    assert has_words(session, ("baton_shim.session.zygote", "pandas"))


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
        cells[name].wait_for_text(f"{number}.0")
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
    said = ""

    def has_changed() -> bool:
        nonlocal said
        result = plain.run(f"%%gpu\n{VERSION}", stop_on_error=False)
        said = result.stderr
        return result.stdout == "2.0\n"

    wait_until(has_changed, "the notebook gets a session of the environment that its course has now")
    assert (
        "This cell runs in a new session, because the earlier one had another environment, or an earlier version of two"
        in said
    )
    assert plain.run("x = 5\n").error is None
    assert plain.gpu(f"x += 1\n{VERSION}\nx").ok().value == "6"

    rules = '[course.another]\nenvironment = "two"\nenvironments = ["one", "three"]\n'
    (course.folder / "courses.toml").write_text(rules)
    wait_until(lambda: '"environments":["one","three"]' in course.service.answers("/v1/courses"), "the file is read")
    unknown = plain.run(f"%%gpu --env four\n{VERSION}")
    assert "This cell asks for the environment four, but another has two, one, three." in unknown.plain_traceback
    assert "hint: use %%gpu --env two" in unknown.plain_traceback
    chosen = plain.run(f"%%gpu --env one\nx += 1\n{VERSION}").ok()
    assert (chosen.stdout, "runs in a new session" in chosen.stderr) == ("1.0\n", True)
    block = "    import course_tool\n    x += int(float(course_tool.VERSION))"
    plain.run(f"from baton import gpu\nwith gpu(env='three'):\n{block}").ok()
    assert plain.gpu(f"x += 1\n{VERSION}\nx").ok().value == "11"
    calls = "def version(_):\n    import course_tool\n    return course_tool.VERSION\n"
    assert plain.run(f"{calls}gpu.map(version, [1, 2], env='one')").ok().value == "['1.0', '1.0']"
    (course.service.place.work / "job.py").write_text(VERSION)
    job = course.run("run", "--env", "three", "job.py", BATON_COURSE="another")
    assert (job.returncode, job.stdout.splitlines()[-1:]) == (0, ["3.0"]), job.stderr


def test_a_lock_that_is_broken_is_no_failure_of_the_worker(course: Class, wheels: Wheels) -> None:
    lock = wheels.lock(course.folder / "two.txt", course_tool="2.0")
    whole = lock.read_text()
    lock.write_text(whole.replace("sha256:", "sha256:00"))
    (course.folder / "one.txt").write_text("course_tool==1.0\n")
    course.start_worker(
        f'[environment.one]\nlock = "{course.folder / "one.txt"}"', f'[environment.two]\nlock = "{lock}"'
    )
    why = course.why_failed("two")
    assert why.startswith("uv could not install the lock: "), why
    assert "hash" in why.lower(), why
    assert why.endswith("hint: correct the lock"), why
    assert "one.txt has no hashes hint: write it again" in course.why_failed("one")
    assert "environment two: failed (uv could not install the lock" in course.service.answers("/workers")
    assert course.notebook("another").gpu("1").ok().value == "1"
    waiting = course.notebook("two").begin(f"%%gpu\n{VERSION}")
    line = "worker-0 could not prepare two: uv could not install the lock"
    told = waiting.wait_for(lambda result: line in "\n".join(result.notices), "the line says why")
    assert "a worker that offers the environment two" in "\n".join(told.notices)
    lock.write_text(whole)
    waiting.wait_for_text("2.0")
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

    wait_until(lambda: begun(builds), "the package's own code runs")
    assert course.state("two") == "preparing"
    waiting = course.notebook("two").begin("%%gpu\nimport course_built\nprint(course_built.REACHED)")
    line = f"{name} is preparing two"
    waiting.wait_for(lambda result: line in "\n".join(result.notices), "the line says that it is being prepared")
    course.service.kill(name)
    wait_until(lambda: not building(place.processes()), "the build has ended with its worker")
    for file in begun(builds):
        file.unlink()
    course.start_worker(section, name=name)
    wait_until(lambda: begun(builds), "it is built anew")
    go.touch()
    waiting.wait_for_text("[")
    assert waiting.finish().ok().stdout == "[False, False]\n"
    assert not secret.with_name("secret.new").exists()
    assert [path.name for path in builds.glob("*/complete")] == ["complete"]
    assert not list(builds.glob("*/work/cache"))


def test_of_two_workers_with_one_folder_one_builds(course: Class, wheels: Wheels) -> None:
    place = course.service.place
    go = place.signs / "go"
    wheels.make_source("course_built", go, go)
    lock = wheels.lock(course.folder / "two.txt", course_built="1.0")
    builds = place.folder / "home/.cache/baton/environments"
    section = f'[environment.two]\nlock = "{lock}"'
    names = [course.start_worker(section)]
    wait_until(lambda: begun(builds), "the first one builds")
    names.append(course.start_worker(section))
    go.touch()

    def states() -> list[dict[str, Any]]:
        workers = json.loads(course.run("workers", "--json").stdout)
        return [offered["state"] for worker in workers for offered in worker["machine"].get("environments", [])]

    wait_until(lambda: states() == [{"ready": {}}] * 2, "both are ready")
    said = "Building the environment two"
    assert [said in course.service.log(name) for name in names] == [True, False]


def test_a_full_disk_is_named_and_the_worker_goes_on(course: Class, wheels: Wheels) -> None:
    lock = wheels.lock(course.folder / "two.txt", course_tool="2.0")
    disk = course.folder / "disk"
    # The small disk is only for the worker's own processes.
    sandbox = {"BATON_WORKER_SANDBOX": "none", "BATON_WORKER_PYTHON": sys.executable}
    course.start_worker(
        f'[environment.two]\nlock = "{lock}"\n[worker]\nenvironments = "{disk}"', prefix=on_small_disk(disk), **sandbox
    )
    why = course.why_failed("two")
    assert why.startswith(f"The disk of {disk}/"), why
    assert why.endswith("is full hint: make room there, or name another folder"), why
    assert course.notebook("another").gpu("1").ok().value == "1"


@pytest.mark.skipif(SANDBOX in ("none", "landlock"), reason="only bubblewrap shows another system")
def test_cells_find_the_system_of_an_image(course: Class, wheels: Wheels) -> None:
    root = course.folder / "image"
    python = make_image(root, wheels, BINARY.with_name("uv"), "course_tool==2.0")
    course.start_worker(
        f'[environment.one]\nimage = "{root}"\npython = "{python}"', f'[environment.two]\nimage = "{root}"'
    )
    wait_until(lambda: course.state("one") == "ready", "the image has run a cell")
    notebook = course.notebook("one")
    notebook.run("import numpy as np\nvalues = [1, 2]").ok()
    system = (
        "import os, sys\nvalues.append(3)\nopen('made.txt', 'w').write('by the cell')\n"
        "os.listdir('/opt'), open('/etc/image').read(), os.path.exists('/usr/bin/perl'), sys.base_prefix, "
        "os.environ['PATH'].split(':')[1], os.path.exists('/home/guest')"
    )
    result = notebook.gpu(f"{VERSION}\n{system}").ok()
    assert result.stdout == "2.0\n"
    own = str(python.parent)
    expected = (["python"], "of the image", False, str(python.parent.parent), own, False)
    assert ast.literal_eval(str(result.value)) == expected
    assert notebook.evaluate("values") == [1, 2, 3]
    assert (course.service.place.work / "made.txt").read_text() == "by the cell"
    why = course.why_failed("two")
    assert why.endswith('has no Python there hint: name its path inside with python = "/PATH"'), why


def begun(builds: Path) -> list[Path]:
    """What a package's code has left in a folder that changes all the time."""
    return [Path(folder, "begun") for folder, _, files in os.walk(builds) if "begun" in files]


def building(processes: list[psutil.Process]) -> list[str]:
    lines = []
    for process in processes:
        try:
            lines.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return [line for line in lines if "uv pip" in line or "build_wheel" in line or "/uv" in line]


def test_the_same_environment_beside_the_notebook(course: Class, wheels: Wheels) -> None:
    lock = wheels.lock(course.folder / "two.txt", course_tool="2.0")
    section = f'[environment.two]\nlock = "{lock}"'
    course.start_worker(section)

    def env(*arguments: str, code: int = 0) -> str:
        # Where this process looks for kernels.
        kernels = {"JUPYTER_DATA_DIR": os.environ["JUPYTER_DATA_DIR"]}
        said = course.run("env", *arguments, BATON_COURSE="two", **kernels)
        assert said.returncode == code, said.stdout + said.stderr
        return said.stdout

    there = re.compile(r"^two +3\.\d+ +1 of 1 ready +not installed$", re.MULTILINE)
    wait_until(lambda: there.search(env("list")), "the broker has the lock")
    assert env("sync", "two", "--check", code=1) == (
        "The environment two is not installed here\nhint: run `baton env sync two`\n"
    )
    said = env("sync")
    assert re.search(r"^The environment two is installed \(Python 3\.\S+, lock [0-9a-f]{8}\)$", said, re.MULTILINE), (
        said
    )
    assert 'Select the kernel "Python (shared GPU) - two" in your notebook' in said
    notebook = course.notebook("two", name="baton-two")
    notebook.run("import course_tool\nthing = course_tool.Thing()").ok()
    result = notebook.gpu("thing.size += 1\ncourse_tool.VERSION").ok()
    assert (result.value, result.stderr) == ("'2.0'", "")
    assert notebook.evaluate("thing.size") == 4
    assert env("sync", "two").startswith("The environment two is up to date (")
    assert env("sync", "two", "--check").startswith("The environment two is up to date (")

    (information,) = Path(course.service.place.folder, "home/.local/share/baton").rglob("course_tool-2.0.dist-info")
    information.rename(information.with_name("course_tool-9.9.dist-info"))
    changed = "The packages of two have changed since it was installed here:\n  course-tool: 2.0 before, 9.9 now\n"
    assert env("sync", "two", "--check", code=1) == f"{changed}hint: run `baton env sync two`\n"
    assert env("sync", "two").startswith(f"{changed}The environment two is installed (")
    assert env("sync", "two", "--check").startswith("The environment two is up to date (")

    wheels.lock(lock, course_tool="3.0")
    outdated = re.compile(r"^two +3\.\d+ +1 of 1 ready +outdated$", re.MULTILINE)
    wait_until(lambda: outdated.search(env("list")), "the new lock is built")
    assert "The lock of two has changed" in env("sync", "two", "--check", code=1)
    result = notebook.gpu(f"{VERSION}\nthing.size").ok()
    assert (result.stdout, result.value) == ("3.0\n", "4")
    assert "because the earlier one had another environment, or an earlier version of two" in result.stderr
    assert "This notebook has course-tool 2.0, but the environment two of your course has 3.0" in result.stderr
    env("sync", "two")
    newer = course.notebook("two", name="baton-two")
    assert newer.gpu(VERSION).ok().stdout == "3.0\n"
    unknown = course.run("env", "sync", "four")
    assert "No worker offers or has offered the environment four" in unknown.stderr
    assert "`baton env list` lists the available ones" in unknown.stderr


def test_a_package_that_differs_is_named_before_the_run_with_what_mends_it(course: Class, wheels: Wheels) -> None:
    wheels.make("course_other", "1.0")
    wheels.make("course_other", "2.0")
    lock = wheels.lock(course.folder / "two.txt", course_tool="2.0", course_other="2.0")
    course.start_worker(f'[environment.two]\nlock = "{lock}"')
    course.wait_until_ready("two")
    site = course.folder / "site-packages"
    for name in ("course_tool", "course_other"):
        with zipfile.ZipFile(wheels.folder / f"{name}-1.0-py3-none-any.whl") as wheel:
            wheel.extractall(site)
    notebook = course.notebook("two")
    notebook.run(f"import sys; sys.path.append({str(site)!r})\nimport course_tool\nthing = course_tool.Thing()").ok()
    result = notebook.gpu("print('runs')\nthing.size").ok()
    assert result.value == "3"
    assert result.stderr == (
        "warning: This notebook has course-tool 1.0, but the environment two of your course has 2.0; "
        "its objects may behave differently\n"
        "hint: run 'baton env sync two' in a terminal and select the kernel that it names\n"
    )
    assert notebook.gpu("thing.size").ok().stderr == ""
    assert "course-other 1.0" in notebook.gpu("import course_other").stderr
