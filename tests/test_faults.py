"""Killed workers, sessions and brokers, full disks, missing packages: nothing hangs, nothing is lost.

After every fault the notebook has the values that it promises, and the next `%%gpu` cell works.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from end_to_end import Cell, Kernel, Service, wait_until
from end_to_end.place import WHO
from end_to_end.results import Result
from end_to_end.service import run_binary

SAFE = "Your variables are as they were before"


@pytest.fixture
def running(service: Service) -> Service:
    """One broker, one worker."""
    service.start_broker()
    service.start_worker()
    return service


@pytest.fixture
def notebook(running: Service, new_kernel: Callable[..., Kernel]) -> Kernel:
    kernel = running.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    kernel.gpu("values.append(2)").ok()
    return kernel


def begin_endless(kernel: Kernel) -> tuple[Cell, int]:
    """A running cell that has changed something, and the process that runs it."""
    cell = kernel.begin("%%gpu\nimport os\nvalues.append('lost')\nprint(" + WHO + ", flush=True)\nwhile True: pass")
    shown = cell.wait_for(lambda result: result.stdout.endswith("\n"), "the cell runs").stdout
    return cell, kernel.place.session_pid(shown)


def check_lost(result: Result, kernel: Kernel) -> None:
    """Checks that the error says that the variables are safe, and that they are."""
    assert result.error is not None, result.outputs
    assert SAFE in result.plain_traceback
    assert kernel.evaluate("values") == [1, 2]


# ---- proxies


def test_a_proxy_killed_while_a_cell_runs(notebook: Kernel) -> None:
    _, session = begin_endless(notebook)
    notebook.proxy.kill()
    wait_until(lambda: not psutil.pid_exists(session), "the cell was stopped")


# ---- workers and sessions


def test_a_worker_killed_while_a_cell_runs(running: Service, notebook: Kernel) -> None:
    cell, session = begin_endless(notebook)
    running.kill("worker-0")
    check_lost(cell.finish(), notebook)
    wait_until(lambda: not psutil.pid_exists(session), "the dead worker's session ended")
    running.start_worker()
    assert notebook.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 3]"
    assert notebook.evaluate("values") == [1, 2, 3]


def test_a_service_started_by_a_cell_is_killed_while_a_cell_runs(
    service: Service, new_kernel: Callable[..., Kernel]
) -> None:
    """Its broker and its worker are one process, which the notebook starts again."""
    kernel = new_kernel(at=service.place)
    kernel.run("values = [1]").ok()
    kernel.gpu("values.append(2)").ok()
    cell, _ = begin_endless(kernel)
    service.place.process("baton", "up").kill()
    check_lost(cell.finish(), kernel)


def test_a_service_whose_runtime_folder_is_removed_makes_room_for_another(
    service: Service, new_kernel: Callable[..., Kernel]
) -> None:
    new_kernel(at=service.place).gpu("1").ok()
    cut_off = service.place.process("baton", "up").pid
    shutil.rmtree(service.place.folder / "run/baton")
    wait_until(lambda: not psutil.pid_exists(cut_off), "the service has noticed")
    assert new_kernel(at=service.place).gpu("1 + 1").ok().value == "2"


def test_a_session_killed_while_a_cell_runs(notebook: Kernel) -> None:
    cell, session = begin_endless(notebook)
    psutil.Process(session).kill()
    check_lost(cell.finish(), notebook)
    assert notebook.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 3]"


def test_a_session_that_ends_itself(notebook: Kernel) -> None:
    result = notebook.gpu("import os\nvalues.append('lost')\nos._exit(3)")
    check_lost(result, notebook)
    assert result.error is not None
    assert "ended (exit status 3)" in result.error[1]
    assert "its last line was" not in result.error[1]
    assert notebook.gpu("values").ok().value == "[1, 2]"


def test_a_session_killed_between_cells_is_rebuilt_unnoticed(notebook: Kernel) -> None:
    notebook.kill_session()
    result = notebook.gpu("values.append(3)\nvalues").ok()
    assert result.outputs == [("execute_result", "[1, 2, 3]")]
    assert notebook.evaluate("values") == [1, 2, 3]


def test_a_worker_replaced_between_cells(running: Service, notebook: Kernel) -> None:
    running.end("worker-0", signal.SIGTERM)
    running.start_worker()
    assert notebook.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 3]"


def test_a_worker_asked_to_stop_lets_its_cell_end(running: Service, notebook: Kernel) -> None:
    go = running.place.signs / "go"
    cell = notebook.begin(
        "%%gpu\nimport pathlib, time\n"
        "end = time.monotonic() + 20\n"
        "print('began', flush=True)\n"
        f"while time.monotonic() < end or not pathlib.Path({str(go)!r}).exists():\n    time.sleep(0.01)\n"
        "values.append(3)"
    )
    cell.wait_for(lambda result: "began" in result.stdout, "the cell runs")
    worker = running.process("worker-0")
    worker.terminate()
    wait_until(lambda: "Leaving when the running cells have ended" in running.log("worker-0"), "the worker leaves")
    wait_until(lambda: "leaving" in running.answers("/"), "the broker knows")
    go.touch()
    cell.finish().ok()
    assert notebook.evaluate("values") == [1, 2, 3]
    assert running.wait("worker-0") == 0
    running.start_worker()
    assert notebook.gpu("values").ok().value == "[1, 2, 3]"


def test_a_worker_asked_twice_to_stop_ends_its_cell(running: Service, notebook: Kernel) -> None:
    cell, session = begin_endless(notebook)
    worker = running.process("worker-0")
    worker.terminate()
    wait_until(lambda: "Leaving when the running cells have ended" in running.log("worker-0"), "the worker leaves")
    worker.terminate()
    result = cell.finish()
    check_lost(result, notebook)
    assert "The worker was stopped while the cell ran" in result.plain_traceback
    assert "run the cell again: another worker takes it" in result.plain_traceback
    assert running.wait("worker-0") == 0
    wait_until(lambda: not psutil.pid_exists(session), "the session ended")
    running.start_worker()
    assert notebook.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 3]"
    assert notebook.evaluate("values") == [1, 2, 3]


def test_children_of_a_session_end_with_it(running: Service, notebook: Kernel) -> None:
    notebook.gpu("import subprocess\nchild = subprocess.Popen(['sleep', '600'])\nprint(child.pid)").ok()
    assert running.place.has("sleep", "600")
    notebook.shutdown()
    wait_until(lambda: not running.place.has("sleep", "600"), "the session's children ended")


def test_a_question_ends_with_its_session(notebook: Kernel) -> None:
    session = psutil.Process(notebook.session_pid)
    cell = notebook.begin("%%gpu\nvalues.append(input('Name? '))")
    cell.wait_for_question()
    session.kill()
    check_lost(cell.finish(), notebook)
    notebook.client.input("too late")
    assert notebook.gpu("values.append(input())\nvalues", answers=["Ada"]).ok().value == "[1, 2, 'Ada']"


def test_a_question_ends_at_the_time_limit_and_when_staff_cancel_its_job(running: Service, notebook: Kernel) -> None:
    cell = notebook.begin("%%gpu --timeout 2s\nvalues.append(3)\ninput()")
    cell.wait_for_question()
    assert cell.finish().reply["ename"] == "CellTimeout"
    cell = notebook.begin("%%gpu\nvalues.append(4)\ninput()")
    cell.wait_for_question()
    job = json.loads(run_binary(running.place, "jobs", "--json", **running.access).stdout)[0]["job"]
    assert run_binary(running.place, "cancel", job, **running.access).returncode == 0
    assert cell.finish().error is not None
    assert notebook.evaluate("values") == [1, 2, 3, 4]


# ---- the broker


def test_an_answer_to_input_survives_the_broker(running: Service, notebook: Kernel) -> None:
    cell = notebook.begin("%%gpu\nfor _ in range(2):\n    values.append(input('Name? '))")
    cell.wait_for_question()
    broker = running.broker
    broker.suspend()
    running.wait_until_stopped(broker)
    notebook.client.input("Ada")  # this broker never passes it on
    running.kill("broker")
    running.start_broker()
    cell.wait_for(lambda _: len(cell.questions) == 2, "the second question")
    notebook.client.input("Grace")
    cell.finish().ok()
    assert notebook.evaluate("values") == [1, 2, "Ada", "Grace"]


class Gate:
    """Lets a cell continue step by step, and counts its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.code = (
            "import os, pathlib, time\n"
            f"folder = pathlib.Path({str(folder)!r})\n"
            "with (folder / 'runs').open('a') as runs:\n    runs.write('x')\n"
            "for step in range(3):\n"
            "    print('step', step, flush=True)\n"
            "    while not (folder / f'go-{step}').exists():\n        time.sleep(0.01)\n"
            "values.append(step)"
        )

    def open(self, step: int) -> None:
        (self.folder / f"go-{step}").touch()

    @property
    def runs(self) -> int:
        path = self.folder / "runs"
        return len(path.read_text()) if path.exists() else 0


@pytest.fixture
def gate(service: Service) -> Gate:
    return Gate(service.place.work)


def check_ran_once(cell: Cell, gate: Gate, kernel: Kernel) -> None:
    result = cell.finish().ok()
    assert result.stdout == "step 0\nstep 1\nstep 2\n"
    assert gate.runs == 1
    assert kernel.evaluate("values") == [1, 2, 2]
    assert kernel.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 2, 3]"


def test_the_broker_killed_and_restarted_while_a_cell_runs(running: Service, notebook: Kernel, gate: Gate) -> None:
    cell = notebook.begin(f"%%gpu\n{gate.code}")
    cell.wait_for_text("step 0")
    running.kill("broker")
    gate.open(0)
    running.start_broker()
    cell.wait_for_text("step 1")
    gate.open(1)
    gate.open(2)
    check_ran_once(cell, gate, notebook)


def test_the_cell_ends_while_the_broker_is_away(running: Service, notebook: Kernel, gate: Gate) -> None:
    cell = notebook.begin(f"%%gpu\n{gate.code}\n(folder / 'ended').touch()")
    cell.wait_for_text("step 0")
    running.kill("broker")
    for step in range(3):
        gate.open(step)
    wait_until((gate.folder / "ended").exists, "the cell ended")
    running.start_broker()
    check_ran_once(cell, gate, notebook)


def test_the_broker_killed_and_restarted_while_a_cell_waits(
    service: Service, new_kernel: Callable[..., Kernel], gate: Gate
) -> None:
    service.start_broker()
    kernel = service.kernel(new_kernel)
    kernel.run("values = [1, 2]").ok()
    cell = kernel.begin(f"%%gpu\n{gate.code}")
    cell.wait_for(lambda result: "no GPU worker" in str(result.notices), "the line says that it waits")
    service.kill("broker")
    service.start_broker()
    service.start_worker()
    for step in range(3):
        gate.open(step)
    check_ran_once(cell, gate, kernel)


def test_the_broker_killed_many_times_while_cells_run(running: Service, notebook: Kernel) -> None:
    notebook.run("total = 0").ok()
    for round_ in range(4):
        cell = notebook.begin("%%gpu\nfor number in range(5):\n    total += 1\n    print(total, flush=True)")
        running.kill("broker")
        running.start_broker()
        result = cell.finish().ok()
        assert result.stdout.split() == [str(round_ * 5 + number) for number in range(1, 6)]
    assert notebook.evaluate("total") == 20


@pytest.fixture
def breakable_python(service: Service) -> tuple[Path, Path]:
    """A Python, and a file; while the file exists, the Python does not start. (Forks of a zygote would still start.)"""
    broken, python = service.place.signs / "broken", service.place.signs / "python"
    python.write_text(
        f'#!/bin/sh\n[ ! -e {broken} ] || {{ echo "no libpython"; exit 3; }}\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    return python, broken


def state_of(service: Service, worker: str) -> str:
    workers = json.loads(service.answers("/v1/workers"))["items"]
    return next(each["state"] for each in workers if each["name"] == worker)


def busy(service: Service) -> set[str]:
    return {job["worker"] for job in service.jobs() if job["state"] == "started"}


def test_a_worker_that_cannot_start_sessions_fails_no_cells(
    service: Service, new_kernel: Callable[..., Kernel], breakable_python: tuple[Path, Path]
) -> None:
    """They run on another worker; and the first one gets cells again once sessions start there."""
    python, broken = breakable_python
    service.start_broker()
    faulty = service.start_worker(slots=1, BATON_WORKER_PYTHON=str(python), BATON_WORKER_WARM_STARTS="false")
    broken.touch()
    sound = service.start_worker(slots=1)
    kernels = [service.kernel(new_kernel) for _ in range(3)]
    cells = [kernel.begin("%%gpu\nran = True") for kernel in kernels]
    assert all(cell.finish().ok() for cell in cells)
    assert {job["worker"] for job in service.jobs()} == {sound}
    assert state_of(service, faulty) == "failing"
    broken.unlink()
    wait_until(lambda: state_of(service, faulty) == "connected", "its trial has passed")
    go = service.place.signs / "go"
    wait = f"%%gpu\nimport os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.01)"
    cells = [service.kernel(new_kernel).begin(wait) for _ in range(2)]
    wait_until(lambda: busy(service) == {faulty, sound}, "both workers have a cell")
    go.touch()
    assert all(cell.finish().ok() for cell in cells)


def test_the_only_worker_cannot_start_sessions(
    service: Service, new_kernel: Callable[..., Kernel], breakable_python: tuple[Path, Path]
) -> None:
    python, broken = breakable_python
    service.start_broker()
    service.start_worker(BATON_WORKER_PYTHON=str(python), BATON_WORKER_WARM_STARTS="false")
    broken.touch()
    kernel = service.kernel(new_kernel)
    kernel.run("values = [1, 2]").ok()
    cell = kernel.begin("%%gpu\nvalues.append(3)\nvalues")
    cell.wait_for(lambda result: "no libpython" in str(result.published), "the line says why the cell waits")
    (job,) = service.jobs()
    assert job["waiting"]["rule"] == "workers_fail"
    assert "no libpython" in job["waiting"]["sentence"]
    broken.unlink()
    assert cell.finish().ok().value == "[1, 2, 3]"


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        pytest.param("exit 3", "exit status: 3", id="it does not start"),
        pytest.param("echo 'raise ImportError(\"no cells\")' > $0.d/cloudpickle.py", "no cells", id="no cell runs"),
    ],
)
def test_a_worker_tries_a_cell_before_it_takes_any(
    service: Service, new_kernel: Callable[..., Kernel], tmp_path: Path, trouble: str, told: str
) -> None:
    """Staff see why it accepts none, also after a restart of the broker."""
    python = tmp_path / "python"
    start = f"export PYTHONPATH={python}.d; mkdir -p $PYTHONPATH; rm -f $PYTHONPATH/*.py"
    end = f'exec {sys.executable} "$@"'
    python.write_text(f"#!/bin/sh\n{start}\n{trouble}\n{end}\n")
    python.chmod(0o755)
    service.start_broker()
    # Its Python changes one of its folders, which no sandbox allows.
    worker = service.begin_worker(BATON_WORKER_PYTHON=str(python), BATON_WORKER_SANDBOX="none")
    wait_until(
        lambda: "Sessions cannot start here, so this worker accepts no cells" in service.log(worker), "it says so"
    )
    assert told in service.log(worker)
    check_failing(service, worker, told)
    cell = service.kernel(new_kernel).begin("%%gpu\nran = True")
    cell.wait_for(lambda result: told in str(result.published), "the line says why the cell waits")
    service.kill("broker")
    service.start_broker()
    check_failing(service, worker, told)
    # In one step, because the worker may be executing it.
    whole = tmp_path / "whole"
    whole.write_text(f"#!/bin/sh\n{start}\n{end}\n")
    whole.chmod(0o755)
    whole.rename(python)
    cell.finish().ok()
    assert state_of(service, worker) == "connected"


def check_failing(service: Service, worker: str, told: str) -> None:
    def workers() -> list[dict[str, str]]:
        answer = service.answers("/v1/workers") or '{"items": []}'
        return [each for each in json.loads(answer)["items"] if each["state"] == "failing"]

    (found,) = wait_until(workers, "the worker is there")
    assert found["name"] == worker
    assert told in found["reason"]
    assert told in service.answers("/workers")


def test_ordinary_cells_need_no_broker(running: Service, notebook: Kernel) -> None:
    running.kill("broker")
    running.kill("worker-0")
    assert notebook.run("sum(values)").ok().value == "3"


def test_a_full_disk_for_jobs(service: Service, new_kernel: Callable[..., Kernel], gate: Gate) -> None:
    """A new cell gets an error; a running one continues, and its output arrives when there is space again."""
    service.start_broker(small_disk=True)
    service.start_worker()
    running, other = service.kernel(new_kernel), service.kernel(new_kernel)
    for kernel in (running, other):
        kernel.run("values = [1]").ok()
        kernel.gpu("values.append(2)").ok()
    cell = running.begin(f"%%gpu\n{gate.code}")
    cell.wait_for_text("step 0")
    with service.full_disk():
        gate.open(0)
        result = other.gpu("values.append('lost')")
        check_lost(result, other)
        assert "The broker's disk is full" in result.plain_traceback
        assert "hint: " in result.plain_traceback
    assert other.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 3]"
    gate.open(1)
    gate.open(2)
    check_ran_once(cell, gate, running)


@pytest.mark.root("count the descriptors of a hardened process")
def test_a_broker_without_descriptors(running: Service, notebook: Kernel, new_kernel: Callable[..., Kernel]) -> None:
    """A new notebook gets an error; a connected one continues to work."""
    new = running.kernel(new_kernel)
    new.run("values = [1, 2]").ok()
    with running.no_descriptors():
        result = new.gpu("values.append('lost')")
        check_lost(result, new)
        assert "The broker can open no more files or connections" in result.plain_traceback
        assert "hint: " in result.plain_traceback
        notebook.gpu("values.append(3)").ok()
    assert new.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 3]"


def test_a_worker_without_descriptors_for_the_result(running: Service, notebook: Kernel, gate: Gate) -> None:
    """Only the session has the cell's changes, so the worker asks it again until it can receive them."""
    cell = notebook.begin(f"%%gpu\n{gate.code}\nvalues")
    gate.open(0)
    gate.open(1)
    cell.wait_for_text("step 2")
    worker = running.process("worker-0")
    before = worker.rlimit(psutil.RLIMIT_NOFILE)
    worker.rlimit(psutil.RLIMIT_NOFILE, (8, before[1]))
    gate.open(2)
    wait_until(lambda: "could not be sent yet" in running.log("worker-0"), "the worker cannot take the result")
    worker.rlimit(psutil.RLIMIT_NOFILE, before)
    assert cell.finish().ok().value == "[1, 2, 2]"
    assert notebook.evaluate("values") == [1, 2, 2]


def test_a_full_disk_for_chunks(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker(BATON_BROKER_CHUNK_LIMIT="4MB")
    service.start_worker(BATON_TRANSPORT="http")
    kernel = service.kernel(new_kernel, BATON_TRANSPORT="http")
    kernel.run("import numpy as np\nbig = np.random.default_rng(1).random(4_000_000)\nvalues = [1, 2]").ok()
    result = kernel.gpu("values.append('lost')\nbig += 1")
    check_lost(result, kernel)
    assert "no room" in result.plain_traceback
    assert "hint: " in result.plain_traceback
    assert kernel.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 3]"


def test_a_full_disk_for_the_result(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker(BATON_BROKER_CHUNK_LIMIT="4MB")
    service.start_worker(BATON_TRANSPORT="http")
    kernel = service.kernel(new_kernel, BATON_TRANSPORT="http")
    kernel.run("values = [1, 2]").ok()
    kernel.gpu("import numpy as np\nvalues.append('lost')\nbig = np.random.default_rng(1).random(4_000_000)").ok()
    cell = kernel.begin("values", stop_on_error=False)
    cell.wait_for(lambda result: "Waiting for 30.5 MiB" in result.stderr, "the cell waits for room")
    kernel.interrupt()
    assert "'%gpu_reset --lose' gives them up" in cell.finish().plain_traceback
    kernel.run("%gpu_reset --lose").ok()
    assert kernel.run("values").ok().value == "[1, 2]"
    assert kernel.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 3]"


# ---- packages that a worker lacks


def test_a_package_that_the_worker_does_not_have(
    running: Service, new_kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    installed = tmp_path / "site-packages"
    (installed / "only_here").mkdir(parents=True)
    (installed / "only_here/__init__.py").write_text("class Thing:\n    pass\n")
    kernel = running.kernel(new_kernel, PYTHONPATH=str(installed))
    kernel.run("import only_here\nthing = only_here.Thing()\nvalues = [1, 2]").ok()
    result = kernel.gpu("values.append('lost')\nprint(thing)")
    check_lost(result, kernel)
    assert "only_here" in str(result.error)
    assert kernel.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 3]"


def test_a_broker_that_is_away_for_half_a_minute_when_a_cell_ends(
    running: Service, new_kernel: Callable[..., Kernel]
) -> None:
    """Longer than a request waits: the session keeps the results, which have to pass through the broker."""
    kernel = running.kernel(new_kernel, BATON_TRANSPORT="http")
    kernel.run("import numpy as np, pathlib").ok()
    marker = running.place.signs / "go"
    cell = kernel.begin(
        "%%gpu\nimport time\nprint('runs', flush=True)\n"
        f"while not pathlib.Path({str(marker)!r}).exists(): time.sleep(0.01)\n"
        "made = np.random.default_rng(1).random(1_000_000)"
    )
    cell.wait_for_text("runs")
    running.kill("broker")
    marker.touch()
    threading.Event().wait(30)
    running.start_broker()
    cell.finish().ok()
    assert kernel.evaluate("bool((made == np.random.default_rng(1).random(1_000_000)).all())") is True
