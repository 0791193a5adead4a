"""`baton run -p seed=1..20`: several jobs of one notebook."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from end_to_end import Place, wait_until
from end_to_end.runs import Runs, held, printed, read, wait_for_log, write
from nbformat.v4 import new_code_cell


@pytest.fixture
def run(place: Place, tmp_path: Path) -> Runs:
    return Runs(place, tmp_path)


def rows_of(run: Runs, group: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(run("--json", "--group", group, command="jobs").stdout)
    return rows


def detach(run: Runs, *arguments: str) -> dict[str, Any]:
    said = run("--detach", "--json", *arguments)
    assert said.returncode == 0, said.stderr
    told: dict[str, Any] = json.loads(said.stdout)
    return told


def test_each_combination_is_a_job_with_a_notebook_of_its_own(run: Runs, tmp_path: Path) -> None:
    defaults = new_code_cell("seed, rate, data = 0, 0, ''", metadata={"tags": ["parameters"]})
    write(tmp_path / "train.ipynb", defaults, "print(seed, rate, data)")
    said = run("train.ipynb", "-p", "seed=1..3", "-p", "data=../data", "--each", "rate=0.1,small")
    assert said.returncode == 0, said.stderr
    names = {f"train.seed={seed}.rate={rate}.out.ipynb": (seed, rate) for seed in (1, 2, 3) for rate in (0.1, "small")}
    assert sorted(said.stdout.splitlines()) == sorted(names)
    assert said.stderr.endswith("Of 6 jobs, 6 ran\n")
    groups = set()
    for name, (seed, rate) in names.items():
        ran = read(tmp_path / name)
        assert printed(ran.cells[-1]) == f"{seed} {rate} ../data\n"
        assert ran.metadata.baton.parameters == {"seed": seed, "data": "../data", "rate": rate}
        groups.add(ran.metadata.baton.group)
    (group,) = groups
    rows = rows_of(run, group[-8:])
    assert {row["group"].replace("-", "") for row in rows} == {group}
    assert sorted(row["notebook"] for row in rows) == sorted(
        f"train.ipynb seed={seed} rate={rate}" for seed, rate in names.values()
    )
    assert len(run("--group", group, command="jobs").stdout.splitlines()) == 7
    assert read(tmp_path / "train.ipynb").cells[0].outputs == []


def test_a_job_that_fails_does_not_keep_others_from_running(run: Runs, tmp_path: Path) -> None:
    write(tmp_path / "train.ipynb", "print(1 / (seed - 2))")
    said = run("train.ipynb", "-p", "seed=1..3", "-o", "out/{seed}.ipynb", "--json")
    assert said.returncode == 3
    assert "out/1.ipynb cannot be written" in said.stderr  # its folder is missing
    (tmp_path / "out").mkdir()
    said = run("train.ipynb", "-p", "seed=1..3", "-o", "out/{seed}.ipynb", "--json")
    assert said.returncode == 1
    told = json.loads(said.stdout)
    assert [job["parameters"] for job in told["jobs"]] == [{"seed": 1}, {"seed": 2}, {"seed": 3}]
    assert [job["ended"]["outcome"] for job in told["jobs"]] == ["ok", "failed", "ok"]
    assert told["jobs"][1]["ended"]["error"] == "Cell 2: ZeroDivisionError: division by zero"
    assert [job["notebook"] for job in told["jobs"]] == [f"out/{seed}.ipynb" for seed in (1, 2, 3)]
    assert printed(read(tmp_path / "out/3.ipynb").cells[1]) == "1.0\n"
    logs = run(told["group"][-8:], command="logs")
    assert "seed=2 Cell 2: ZeroDivisionError" in logs.stdout
    assert logs.stderr == "Of 3 jobs, 2 ran, 1 failed\n"
    log_of_one = run(told["jobs"][1]["job"], command="logs")
    assert "ZeroDivisionError" in log_of_one.stdout


def test_what_cannot_be_an_array_is_told_before(run: Runs, tmp_path: Path) -> None:
    write(tmp_path / "train.ipynb", "print(seed)")
    (tmp_path / "train.py").write_text("print(1)\n")
    for arguments, told in [
        (["train.ipynb", "-p", "seed=1..5000"], "`seed=1..5000` makes 5000 jobs; the limit is 1000"),
        (["train.ipynb", "-p", "a=1..50", "-p", "b=1..50"], "These parameters make 2500 jobs; the limit is 1000"),
        (["train.ipynb", "--each", "a="], "`a=` has no values"),
        (["train.ipynb", "-p", "a=1..3", "-p", "a=4"], "The parameter a is given more than once"),
        (["train.ipynb", "-p", "a=1..3", "-o", "x.ipynb"], "a=1 and a=2 would both write x.ipynb"),
        (["train.ipynb", "-p", "a=1..3", "-p", "b=1..3", "-o", "{b}.ipynb"], "would both write 1.ipynb"),
        (["train.ipynb", "--at-once", "3"], "--at-once is for several jobs"),
        (["-p", "a=1..3", "train.py"], "-p, --each and -o are for notebooks"),
    ]:
        said = run(*arguments)
        assert said.returncode == 2
        assert told in said.stderr, said.stderr
    assert not list(tmp_path.glob("*.out.ipynb"))


def test_what_keeps_one_job_from_running_keeps_the_others(run: Runs, tmp_path: Path) -> None:
    write(tmp_path / "train.ipynb", "print(seed)")
    said = run("train.ipynb", "-p", "seed=1..20", "--gpu", "h100")
    assert said.returncode == 3
    assert "NoGpu: This run asks for the GPU h100" in said.stderr
    assert said.stderr.endswith("Of 20 jobs, 20 could not run\n")
    assert len(list(tmp_path.glob("*.out.ipynb"))) <= 4


def test_a_detached_array_is_followed_and_fetched(run: Runs, place: Place, tmp_path: Path) -> None:
    cell, sign = held(place, "array")
    write(tmp_path / "long.ipynb", "print(seed)", cell)
    told = detach(run, "long.ipynb", "-p", "seed=1..3", "--at-once", "1")
    group, jobs = told["group"], told["jobs"]
    assert [job["notebook"] for job in jobs] == [f"long.seed={seed}.out.ipynb" for seed in (1, 2, 3)]
    wait_for_log(run, jobs[0]["job"], "begun")
    listed = run("--group", group[-8:], command="jobs")
    assert len(listed.stdout.splitlines()) == 2
    assert listed.stderr == "2 jobs of this group have not been submitted yet\n"
    so_far = run(group[-8:], command="fetch")
    assert so_far.returncode == 0
    assert so_far.stdout == f"{tmp_path}/long.seed=1.out.ipynb\n"
    assert "2 of 3 jobs have not started\nThe group continues" in so_far.stderr
    early = run(jobs[2]["job"], command="fetch")
    assert (early.returncode, early.stderr) == (
        3,
        "This job has not started: earlier jobs of its array are waiting or running\n",
    )
    assert "is a group" in run(group, "-o", "one.ipynb", command="fetch").stderr
    sign.touch()
    followed = run("-f", group, command="logs")
    assert followed.returncode == 0
    assert followed.stdout.endswith("seed=3 done\n")
    assert followed.stderr == "Of 3 jobs, 3 ran\n"
    for file in tmp_path.glob("*.out.ipynb"):
        file.unlink()
    assert run(group[-8:], command="fetch").returncode == 0
    assert [printed(read(tmp_path / job["notebook"]).cells[1]) for job in jobs] == ["1\n", "2\n", "3\n"]


def test_a_group_is_cancelled_with_what_it_has_not_submitted(run: Runs, place: Place, tmp_path: Path) -> None:
    """Some of its jobs run, some wait in the queue, and others have not been submitted."""
    cell, _ = held(place, "never")
    write(tmp_path / "long.ipynb", cell)
    told = detach(run, "long.ipynb", "-p", "seed=1..30")
    group = told["group"]
    wait_for_log(run, group, " runs ")
    wait_until(lambda: {row["state"] for row in rows_of(run, group)} == {"queued", "started"}, "some run, some wait")
    said = run(group[-8:], command="cancel")
    assert said.returncode == 0, said.stderr
    assert re.search(r"\b[12]\d jobs of this group will not be submitted", said.stderr), said.stderr
    followed = run("-f", group, command="logs")
    assert (followed.returncode, followed.stderr) == (130, "Of 30 jobs, 30 cancelled\n"), followed.stdout
    assert len(rows_of(run, group)) < 20
    assert {row["state"] for row in rows_of(run, group)} == {"finished"}
    assert "Cancelled before it was submitted" in run(told["jobs"][29]["job"], command="logs").stderr
    assert "no cell with an id ending in" in run("0123456789abcdef0123", command="cancel").stderr


def test_a_job_is_cancelled_before_it_is_submitted(run: Runs, place: Place, tmp_path: Path) -> None:
    cell, sign = held(place, "cancelled-to-come")
    write(tmp_path / "long.ipynb", cell)
    told = detach(run, "long.ipynb", "-p", "seed=1..3", "--at-once", "1")
    wait_for_log(run, told["group"], " runs ")
    said = run(told["jobs"][1]["job"][-8:], command="cancel")
    assert said.returncode == 0, said.stderr
    sign.touch()
    followed = run("-f", told["group"], command="logs")
    assert followed.stderr == "Of 3 jobs, 2 ran, 1 cancelled\n", followed.stdout
    assert "seed=2 Cancelled before it was submitted\n" in followed.stdout
    assert len(rows_of(run, told["group"])) == 2


def test_two_runs_do_not_write_the_same_notebook(run: Runs, place: Place, tmp_path: Path) -> None:
    cell, sign = held(place, "same-notebook")
    write(tmp_path / "train.ipynb", cell)
    told = detach(run, "train.ipynb", "-p", "seed=1..2", "--at-once", "1")
    (tmp_path / "link").symlink_to(tmp_path)
    for job, folder in zip(told["jobs"], ["link", "."], strict=True):
        second = run("train.ipynb", "-o", f"{folder}/{Path(job['notebook']).name}")
        assert second.returncode == 2, second.stderr
        assert f"Job {job['job']}, which has not ended, writes " in second.stderr
    sign.touch()
    assert run("-f", told["group"], command="logs").returncode == 0
    assert run("train.ipynb", "-o", Path(told["jobs"][0]["notebook"]).name).returncode == 0


def test_a_cancelled_job_leaves_its_notebook_to_another_run(run: Runs, place: Place, tmp_path: Path) -> None:
    cell, sign = held(place, "cancelled-same")
    write(tmp_path / "train.ipynb", cell)
    told = detach(run, "train.ipynb", "-p", "seed=1..2", "--at-once", "1")
    wait_for_log(run, told["group"], " runs ")
    to_come = told["jobs"][1]
    assert run(to_come["job"], command="cancel").returncode == 0
    second = detach(run, "train.ipynb", "-o", Path(to_come["notebook"]).name)
    sign.touch()
    assert run("-f", second["job"], command="logs").returncode == 0


def test_of_runs_that_begin_at_once_one_writes_their_notebook(run: Runs, place: Place, tmp_path: Path) -> None:
    cell, sign = held(place, "at-once")
    write(tmp_path / "train.ipynb", cell)
    runs = [run.begin("train.ipynb") for _ in range(3)]
    wait_until(lambda: [one.poll() for one in runs].count(2) == 2, "two runs are refused")
    sign.touch()
    assert sorted(one.wait(timeout=300) for one in runs) == [0, 2, 2]
    for one in runs:
        one.communicate()


def test_ctrl_c_ends_all_jobs(run: Runs, place: Place, tmp_path: Path) -> None:
    cell, _ = held(place, "interrupted-array")
    write(tmp_path / "long.ipynb", cell)
    running = run.begin("long.ipynb", "-p", "seed=1..30", "--at-once", "2")
    output = tmp_path / "long.seed=1.out.ipynb"
    wait_until(lambda: output.exists() and printed(read(output).cells[1]) == "begun\n", "the first job runs")
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=300)
    assert running.returncode == 130, stderr
    assert stderr.endswith("Of 30 jobs, 30 cancelled\n")
    assert read(output).metadata.baton.outcome == "interrupted"


def test_an_array_whose_process_was_killed_says_so(run: Runs, place: Place, tmp_path: Path) -> None:
    cell, _ = held(place, "killed-array")
    write(tmp_path / "long.ipynb", cell)
    told = detach(run, "long.ipynb", "-p", "seed=1..3", "--at-once", "1")
    wait_for_log(run, told["jobs"][0]["job"], "begun")
    place.process("baton", "run", f"--in-background={told['group']}").kill()
    followed = run("-f", told["group"], command="logs")
    assert followed.returncode == 3
    assert followed.stderr == "Of 3 jobs, 3 could not run\n"
    assert "The process of the run was killed" in run(told["jobs"][0]["job"], command="logs").stderr
    wait_until(lambda: {row["state"] for row in rows_of(run, told["group"])} == {"finished"}, "its job has ended, too")
