"""`baton run --resume`: continues where a run failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from end_to_end import Place, Service, wait_until
from end_to_end.place import WHO, lives
from end_to_end.runs import Runs, printed, read, write
from nbformat.v4 import new_code_cell

LOADS = "import uuid\nmodel = uuid.uuid4().hex\nprint(model)"
"""A cell whose result differs in each run."""
FAILS = "step = globals().get('step', 0) + 1\nprint(step)\nif not open('data.txt').read(): raise ValueError('no data')"
LAST = "print(model, step)"


@pytest.fixture
def run(place: Place, tmp_path: Path) -> Runs:
    (tmp_path / "data.txt").write_text("")
    return Runs(place, tmp_path)


def failed(run: Runs, *cells: str, options: tuple[str, ...] = ()) -> str:
    """The job of a run in the background that has failed."""
    write(run.folder / "train.ipynb", *cells)
    job = run.detach("train.ipynb", *options)
    assert run("-f", job, command="logs").returncode in (1, 124)
    return job


def wait_for_end(run: Runs, job: str) -> None:
    wait_until(lambda: not run.place.has("run", f"--in-background={job}"), "the process of the run has ended")


def out(run: Runs) -> nbformat.NotebookNode:
    return read(run.folder / "train.out.ipynb")


def resume(run: Runs, what: str, *options: str) -> dict[str, Any]:
    said = run("--resume", what, "--json", *options)
    told: dict[str, Any] = json.loads(said.stdout)
    told["stderr"] = said.stderr
    return told


def test_a_run_goes_on_at_the_cell_that_failed(run: Runs) -> None:
    job = failed(run, LOADS, FAILS, LAST)
    logs = run(job[-8:], command="logs")
    assert f"`baton run --resume {job}` continues at cell 2" in logs.stderr
    model = printed(out(run).cells[0])
    (run.folder / "data.txt").write_text("data")
    said = run("--resume", job[-8:])
    assert said.returncode == 0, said.stderr
    assert "continues: from cell 2" in said.stdout
    assert "The variables of the earlier cells are still there" in said.stdout
    ran = out(run)
    assert [printed(cell) for cell in ran.cells] == [model, "2\n", f"{model.strip()} 2\n"]
    assert [cell.execution_count for cell in ran.cells] == [1, 3, 4]
    about = ran.metadata.baton
    assert about.outcome == "ok"
    (went_on,) = about.resumed
    assert (went_on.cell, went_on.job) == (2, about.job)
    assert about.job != job
    # Either job identifies the run.
    for name in (job, about.job):
        assert run(name, command="fetch").returncode == 0
    assert "there is nothing to resume" in run("--resume", job).stderr
    wait_for_end(run, job)


def test_variables_are_kept_in_the_sandbox_of_a_course(service: Service) -> None:
    service.start_broker()
    service.start_worker()
    run = Runs(service.place, service.place.work, **service.access)
    (run.folder / "data.txt").write_text("")
    job = failed(run, LOADS, FAILS, LAST)
    model = printed(out(run).cells[0])
    (run.folder / "data.txt").write_text("data")
    assert resume(run, job)["ended"]["outcome"] == "ok"
    assert [printed(cell) for cell in out(run).cells] == [model, "2\n", f"{model.strip()} 2\n"]
    (run.folder / "helper.py").write_text("value = 1\n")
    (run.folder / "data.txt").write_text("")
    job = failed(run, LOADS + "\nimport helper", FAILS, "print(helper.value)")
    model = printed(out(run).cells[0])
    assert resume(run, job)["ended"]["outcome"] == "failed"
    assert printed(out(run).cells[0]) == model
    (run.folder / "data.txt").write_text("data")
    (run.folder / "helper.py").write_text("value = 'mended'\n")
    assert resume(run, job)["ended"]["outcome"] == "ok"
    assert printed(out(run).cells[0]) != model
    assert printed(out(run).cells[2]) == "mended\n"


def test_variables_that_are_kept_can_be_dropped(run: Runs) -> None:
    job = failed(run, LOADS, FAILS, LAST)
    assert f"`baton cancel {job}` drops them" in run(job, command="logs").stderr
    assert run(job, command="cancel").returncode == 0
    wait_for_end(run, job)


def test_it_may_fail_and_go_on_again(run: Runs) -> None:
    job = failed(run, LOADS, FAILS, LAST)
    model = printed(out(run).cells[0])
    again = resume(run, "train.out.ipynb")
    assert again["ended"]["outcome"] == "failed"
    assert "continues at cell 2" in again["stderr"]
    (run.folder / "data.txt").write_text("data")
    # The cell that failed and those below it may have changed, and there may be new ones.
    write(run.folder / "train.ipynb", LOADS, "# mended\n" + FAILS, "print('new')", LAST)
    assert resume(run, again["job"])["ended"]["outcome"] == "ok"
    ran = out(run)
    assert [printed(cell) for cell in ran.cells] == [model, "3\n", "new\n", f"{model.strip()} 3\n"]
    assert [went_on.cell for went_on in ran.metadata.baton.resumed] == [2, 2]
    wait_for_end(run, job)


@pytest.mark.parametrize("cells", [[LOADS + "\n", FAILS, LAST], ["print('more')", LOADS, FAILS, LAST], [FAILS]])
def test_a_change_above_runs_all_cells_again(run: Runs, cells: list[str]) -> None:
    job = failed(run, LOADS, FAILS, LAST)
    model = printed(out(run).cells[0])
    (run.folder / "data.txt").write_text("data")
    write(run.folder / "train.ipynb", *cells)
    said = run("--resume", job)
    assert said.returncode == 0, said.stderr
    assert "cell 1 has changed, so all cells run again" in said.stdout
    ran = out(run)
    assert [cell.execution_count for cell in ran.cells] == list(range(1, len(cells) + 1))
    assert model not in [printed(cell) for cell in ran.cells]
    assert "resumed" not in ran.metadata.baton


def test_a_module_that_changed_runs_all_cells_again(run: Runs) -> None:
    (run.folder / "helper.py").write_text("value = 1\n")
    (run.folder / "unused.py").write_text("")
    job = failed(run, LOADS + "\nimport helper", FAILS, "print(helper.value)")
    model = printed(out(run).cells[0])
    (run.folder / "unused.py").write_text("changed = True\n")
    again = resume(run, job)
    assert printed(out(run).cells[0]) == model
    assert again["ended"]["outcome"] == "failed"
    (run.folder / "data.txt").write_text("data")
    (run.folder / "helper.py").write_text("value = 'mended'\n")
    said = run("--resume", job)
    assert said.returncode == 0, said.stderr
    assert "All cells run again: helper.py has changed" in said.stdout
    assert printed(out(run).cells[0]) != model
    assert printed(out(run).cells[2]) == "mended\n"


def test_a_run_that_fails_again_shows_its_traceback_once(run: Runs) -> None:
    job = failed(run, LOADS, FAILS, LAST)
    said = run("--resume", job)
    assert said.returncode == 1
    assert (said.stdout + said.stderr).count("Traceback (most recent call last)") == 1
    assert "`baton run --resume" in said.stderr
    assert run(job, command="cancel").returncode == 0
    wait_for_end(run, job)


def test_all_cells_run_again_where_the_variables_are_gone(run: Runs) -> None:
    write(run.folder / "train.ipynb", LOADS, FAILS, LAST)
    said = run("train.ipynb")
    assert said.returncode == 1
    model = printed(out(run).cells[0])
    (run.folder / "data.txt").write_text("data")
    said = run("--resume", "train.out.ipynb")
    assert said.returncode == 0, said.stderr
    assert "The variables of this run are not kept: all of it runs again" in said.stderr
    ran = out(run)
    assert printed(ran.cells[0]) != model
    assert [cell.execution_count for cell in ran.cells] == [1, 2, 3]


def test_a_session_that_ended_meanwhile(run: Runs) -> None:
    job = failed(run, f"import os\nprint({WHO})", FAILS, "print('last')")
    session = printed(out(run).cells[0])
    (run.folder / "data.txt").write_text("data")
    process = psutil.Process(run.place.session_pid(session))
    process.kill()
    wait_until(lambda: not lives(process), "the session is gone")
    said = run("--resume", job)
    assert said.returncode == 0, said.stderr
    assert "All cells run again: the session has ended meanwhile" in said.stdout
    ran = out(run)
    assert [cell.execution_count for cell in ran.cells] == [1, 2, 3]
    assert printed(ran.cells[0]) != session
    assert "resumed" not in ran.metadata.baton


def test_variables_are_kept_after_a_time_limit(run: Runs) -> None:
    waits = "import pathlib, time\nwhile not pathlib.Path('data.txt').read_text(): time.sleep(0.1)"
    job = failed(run, LOADS, waits, "print(model)", options=("--timeout", "30s"))
    model = printed(out(run).cells[0])
    (run.folder / "data.txt").write_text("data")
    assert resume(run, job)["ended"]["outcome"] == "ok"
    assert printed(out(run).cells[2]) == model


def test_parameters_and_outputs_stay_those_of_the_run(run: Runs) -> None:
    tagged = new_code_cell("epochs = 1", metadata={"tags": ["parameters"]})
    write(run.folder / "train.ipynb", tagged, FAILS, "print(epochs)")
    said = run("train.ipynb", "-p", "epochs=7", "-o", "mine.ipynb")
    assert said.returncode == 1
    (run.folder / "data.txt").write_text("data")
    assert resume(run, "mine.ipynb")["ended"]["outcome"] == "ok"
    assert printed(read(run.folder / "mine.ipynb").cells[3]) == "7\n"


def test_the_jobs_of_an_array_that_failed_run_again(run: Runs) -> None:
    write(run.folder / "train.ipynb", "print(seed / (seed - 1 + len(open('data.txt').read())))")
    said = run("train.ipynb", "-p", "seed=1..3", "-o", "{seed}.ipynb", "--json")
    assert said.returncode == 1
    told = json.loads(said.stdout)
    assert [job["ended"]["outcome"] for job in told["jobs"]] == ["failed", "ok", "ok"]
    (run.folder / "data.txt").write_text("x")
    # One of them, in the background.
    said = run("--resume", told["jobs"][0]["job"], "--detach", "--json")
    job = json.loads(said.stdout)["job"]
    assert run("-f", job, command="logs").returncode == 0
    assert printed(read(run.folder / "1.ipynb").cells[1]) == "1.0\n"
    # All of them, also in the background.
    (run.folder / "1.ipynb").unlink()
    said = run("--resume", told["group"][-8:], "--detach", "--json")
    assert said.stderr == "1 of 3 jobs run again\n"
    again = json.loads(said.stdout)
    assert [job["parameters"] for job in again["jobs"]] == [{"seed": 1}]
    assert run("-f", again["group"], command="logs").returncode == 0
    assert printed(read(run.folder / "1.ipynb").cells[1]) == "1.0\n"
    assert "there is nothing to resume" in run("--resume", again["group"]).stderr
    assert "All jobs of this group have ended" in run(again["group"], command="cancel").stderr


def test_what_cannot_be_resumed_is_told(run: Runs) -> None:
    write(run.folder / "train.ipynb", "1")
    for what, told in [
        ("train.ipynb", "was not written by `baton run`"),
        ("missing.ipynb", "Failed to read missing.ipynb"),
        ("0123456789abcdef", "No run that was started here ends with"),
    ]:
        said = run("--resume", what)
        assert said.returncode == 3
        assert told in said.stderr, said.stderr
    assert "cannot be used with" in run("--resume", "0123", "-p", "x=1").stderr
    assert "--keep is for one notebook in the background" in run("train.ipynb", "--keep", "1h").stderr


def test_nothing_is_kept_for_longer_than_asked(run: Runs) -> None:
    job = failed(run, LOADS, FAILS, LAST, options=("--keep", "2s"))
    wait_for_end(run, job)
    assert "kept until" not in run(job, command="logs").stderr
