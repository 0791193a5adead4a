"""Pools: a batch system provides workers, which start for waiting cells and leave when they are not needed."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from end_to_end import Kernel
from end_to_end.cluster import Batch, Cluster
from end_to_end.ports import free_port
from end_to_end.service import TOKEN, run_binary
from end_to_end.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[Batch]:
    cluster = Batch(free_port())
    yield cluster
    cluster.close()


def token_files(cluster: Cluster) -> list[Path]:
    return sorted((cluster.service.data / "pools").glob("*.token"))


def test_a_worker_comes_for_the_first_cell_and_leaves_when_idle(
    cluster: Batch, new_kernel: Callable[..., Kernel]
) -> None:
    cluster.start_broker(idle="1s")
    assert cluster.pool["up"] == 0
    cluster.set("hold")
    kernel = cluster.service.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    cell = kernel.begin("%%gpu\nvalues.append(2)\nvalues")
    line = "A GPU machine is being started"
    # On a busy machine, the line may have said something else before.
    cell.wait_for(lambda result: line in str(result.published), "the line says what is awaited")
    # Rounded up to a whole minute, so that it says the same for long enough.
    begins = datetime.now() + timedelta(hours=10)
    (cluster.folder / "expected").write_text(begins.isoformat(timespec="seconds"))
    expected = "he batch system expects it to begin within 10 h"
    cell.wait_for(lambda result: f"{line}. T{expected}" in str(result.published), "the line says when that is")
    assert f"a machine is being started; t{expected}" in cluster.says("jobs")
    assert abs(cluster.pool["workers"][0]["expected_ms"] / 1000 - begins.timestamp()) < 1
    queued = cluster.wait_for(lambda pool: pool["workers"], "a worker is asked for")
    assert (queued["up"], queued["pending"]) == (0, 1)
    [file] = token_files(cluster)
    token = file.read_text()
    assert token not in json.dumps(cluster.submitted)
    assert TOKEN not in json.dumps(cluster.submitted)
    assert not any(name.startswith("BATON_") for name in cluster.submitted[0]["environment"])
    cluster.unset("hold")
    assert cell.finish().ok().value == "[1, 2]"
    left = cluster.wait_for(lambda pool: not pool["workers"], "the worker leaves")
    assert left["start"]["middle_ms"] > 0
    assert len(cluster.submitted) == 1
    assert token_files(cluster) == []
    stranger = run_binary(cluster.service.place, "worker", **(cluster.service.access | {"BATON_TOKEN": token}))
    assert stranger.returncode == 1
    assert "does not accept" in stranger.stderr
    # No part of the notebook was only there.
    assert kernel.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 3]"
    assert len(cluster.submitted) == 2


def test_a_killed_broker_finds_its_workers_again(cluster: Batch, new_kernel: Callable[..., Kernel]) -> None:
    # On a busy machine, a worker may find the restarted broker late. Nothing replaces it meanwhile.
    cluster.environment["BATON_BROKER_WORKER_GRACE"] = "60s"
    cluster.start_broker()
    cluster.set("hold")
    kernel = cluster.service.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    cell = kernel.begin("%%gpu\nvalues.append(2)\nvalues")
    asked = cluster.wait_for(lambda pool: pool["workers"] and pool["workers"][0]["job"], "a worker is asked for")
    cluster.service.kill("broker")
    cluster.unset("hold")
    cluster.restart_broker()
    assert cell.finish().ok().value == "[1, 2]"
    came = cluster.wait_for(lambda pool: pool["up"], "the worker is known")
    assert [worker["job"] for worker in came["workers"]] == [worker["job"] for worker in asked["workers"]]
    # After the restart, a worker that was connected still belongs to its pool.
    cluster.service.kill("broker")
    cluster.restart_broker()
    assert kernel.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 3]"
    again = cluster.wait_for(lambda pool: pool["up"], "the worker is known again")
    assert [worker["name"] for worker in again["workers"]] == [worker["name"] for worker in came["workers"]]
    assert len(cluster.submitted) == 1


def test_a_broker_that_is_killed_before_it_knows_a_job_finds_it_by_its_name(
    cluster: Batch, new_kernel: Callable[..., Kernel]
) -> None:
    cluster.start_broker(max=1)
    cluster.set("hold")
    cluster.set("mute")
    kernel = cluster.service.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    cell = kernel.begin("%%gpu\nvalues.append(2)\nvalues")
    wait_until(lambda: list(cluster.folder.glob("*.pid")), "the job is submitted")
    cluster.service.kill("broker")
    cluster.unset("mute")
    cluster.restart_broker()
    known = cluster.wait_for(lambda pool: pool["workers"] and pool["workers"][0]["job"], "the job is found")
    assert [worker["job"] for worker in known["workers"]] == [job["job"] for job in cluster.submitted]
    cluster.unset("hold")
    assert cell.finish().ok().value == "[1, 2]"
    assert len(cluster.submitted) == 1


def test_three_failures_pause_a_pool_until_it_is_resumed(cluster: Batch, new_kernel: Callable[..., Kernel]) -> None:
    cluster.start_broker()
    cluster.set("refuse")
    kernel = cluster.service.kernel(new_kernel)
    cell = kernel.begin("%%gpu\n6 * 7")
    paused = cluster.wait_for(lambda pool: pool["paused"], "the pool is paused")
    assert paused["failures"] == 3
    assert "Batch job submission failed: Job violates the policy" in paused["last_failure"]
    assert "paused: " in cluster.says("pools")
    assert "Job violates the policy" in cluster.says("pools")
    assert 'baton_pool_paused{pool="slurm-gpu"} 1' in cluster.service.answers("/metrics")
    assert "baton pools resume slurm-gpu" in cluster.service.answers("/workers")
    log = cluster.service.log("broker")
    assert "Job violates the policy" in log
    assert "Pool slurm-gpu is paused after 3 failures" in log
    # The pause outlives the broker.
    cluster.service.kill("broker")
    cluster.unset("refuse")
    cluster.restart_broker()
    cluster.wait_for(lambda pool: pool["paused"], "the pool is still paused")
    assert cluster.submitted == []
    cluster.says("pools", "resume", "slurm-gpu")
    assert cell.finish().ok().value == "42"
    assert not cluster.pool["paused"]
    assert "pool slurm-gpu" in cluster.says("audit")


def test_jobs_that_end_before_their_worker_comes_pause_a_pool(
    cluster: Batch, new_kernel: Callable[..., Kernel]
) -> None:
    cluster.start_broker()
    cluster.set("broken")
    kernel = cluster.service.kernel(new_kernel)
    cell = kernel.begin("%%gpu\n6 * 7")
    paused = cluster.wait_for(lambda pool: pool["paused"], "the pool is paused")
    assert re.search(r"Job 10\d ended before its worker had connected", paused["last_failure"])
    cluster.unset("broken")
    cluster.says("pools", "resume", "slurm-gpu")
    assert cell.finish().ok().value == "42"


def test_workers_on_which_no_session_starts_are_cancelled(cluster: Batch, new_kernel: Callable[..., Kernel]) -> None:
    python = cluster.service.place.folder / "python"
    python.write_text('#!/bin/sh\necho "no libpython"\nexit 3\n')
    python.chmod(0o755)
    # Without a sandbox the worker connects although its Python is broken.
    command = cluster.worker_command(BATON_WORKER_PYTHON=str(python), BATON_WORKER_SANDBOX="none")
    cluster.environment["BATON_BROKER_WORKER_GRACE"] = "100ms"
    cluster.start_broker(max=1, worker=command)
    cell = cluster.service.kernel(new_kernel).begin("%%gpu\n6 * 7")
    paused = cluster.wait_for(lambda pool: pool["paused"], "the pool is paused")
    assert paused["last_failure"].startswith("Sessions cannot start there: ")
    assert "no libpython" in paused["last_failure"]
    check_cancelled(cluster, paused)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    cluster.says("pools", "resume", "slurm-gpu")
    assert cell.finish().ok().value == "42"


def test_jobs_whose_workers_do_not_connect_are_cancelled(cluster: Batch, new_kernel: Callable[..., Kernel]) -> None:
    cluster.start_broker(max=1, worker="sh -c 'exec sleep 600'", start_limit="1s")
    with paused_pool(cluster, new_kernel) as paused:
        assert re.search(r"Job 10\d ran for 1 s, and its worker did not connect", paused["last_failure"])
        check_cancelled(cluster, paused)


def test_a_job_in_an_error_state_is_cancelled(cluster: Batch, new_kernel: Callable[..., Kernel]) -> None:
    cluster.set("hold")
    (cluster.folder / "state").write_text("Eqw")
    cluster.start_broker(max=1)
    with paused_pool(cluster, new_kernel) as paused:
        assert re.fullmatch(r"Job 10\d cannot start \(state Eqw\)", paused["last_failure"])
        check_cancelled(cluster, paused)


def test_a_job_that_cannot_be_cancelled_is_cancelled_later(cluster: Batch, new_kernel: Callable[..., Kernel]) -> None:
    cluster.set("keep")
    cluster.start_broker(max=1, worker="sh -c 'exec sleep 600'", start_limit="1s")
    with paused_pool(cluster, new_kernel) as paused:
        assert [worker["state"] for worker in paused["workers"]] == ["leaving"] * 3
        assert (paused["pending"], paused["leaving"], cluster.cancelled) == (0, 3, [])
        cluster.unset("keep")
        check_cancelled(cluster, cluster.wait_for(lambda pool: not pool["workers"], "the jobs are cancelled"))


def test_a_worker_that_runs_does_not_hide_that_others_cannot_start(
    cluster: Batch, new_kernel: Callable[..., Kernel]
) -> None:
    cluster.start_broker(worker=cluster.worker_command())
    go = cluster.service.place.signs / "go"
    wait = f"%%gpu\nimport os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)"
    first = cluster.service.kernel(new_kernel).begin(wait)
    cluster.wait_for(lambda pool: pool["up"] == 1, "a worker has come")
    cluster.set("refuse")
    second = cluster.service.kernel(new_kernel).begin(wait)
    paused = cluster.wait_for(lambda pool: pool["paused"], "the pool is paused")
    assert (paused["failures"], paused["up"]) == (3, 1)
    assert "Job violates the policy" in paused["last_failure"]
    go.touch()
    first.finish().ok()
    second.finish().ok()


@contextmanager
def paused_pool(cluster: Batch, new_kernel: Callable[..., Kernel]) -> Iterator[dict[str, Any]]:
    """The pool after the workers for a cell have failed. The cell waits meanwhile."""
    cell = cluster.service.kernel(new_kernel).begin("%%gpu\n6 * 7")
    yield cluster.wait_for(lambda pool: pool["paused"], "the pool is paused")
    cell.kernel.interrupt()
    cell.finish()


def check_cancelled(cluster: Batch, paused: dict[str, Any]) -> None:
    assert (paused["failures"], paused["workers"]) == (3, [])
    # The pool asks first about the job that was checked least recently.
    assert sorted(cluster.cancelled) == [job["job"] for job in cluster.submitted]
    assert token_files(cluster) == []
    wait_until(lambda: not cluster.running, "the jobs have ended")


def start_with_courses(cluster: Batch, courses: str, worker: str, **settings: object) -> Path:
    """Starts the broker. Returns the configuration file of the pool's workers, which contains `worker`."""
    file = cluster.service.place.folder / "courses.toml"
    file.write_text(courses)
    cluster.environment["BATON_BROKER_COURSES_FILE"] = str(file)
    config = cluster.service.place.folder / "worker.toml"
    config.write_text(worker)
    command = cluster.worker_command(BATON_CONFIG=str(config))
    cluster.start_broker(max=1, worker=command, **settings)
    return config


def test_an_environment_that_failed_is_tried_again_on_a_new_worker(
    cluster: Batch, new_kernel: Callable[..., Kernel]
) -> None:
    courses = '[course.one]\n[course.two]\nenvironment = "two"\n'
    config = start_with_courses(cluster, courses, '[environment.two]\npython = "/nowhere/python"\n', idle="1s")
    one = cluster.service.kernel(new_kernel, BATON_COURSE="one")
    assert one.gpu("6 * 7").ok().value == "42"
    cluster.wait_for(lambda pool: not pool["workers"], "the worker has left")
    config.write_text(f'[environment.two]\npython = "{sys.executable}"\n')
    two = cluster.service.kernel(new_kernel, BATON_COURSE="two")
    assert two.gpu("6 * 7").ok().value == "42"
    assert len(cluster.submitted) == 2


def test_a_new_label_counts_although_the_last_worker_lacked_it(
    cluster: Batch, new_kernel: Callable[..., Kernel]
) -> None:
    courses = '[course.one]\n[course.three]\nneeds = { labels = ["room-3"] }\n'
    config = start_with_courses(cluster, courses, '[worker]\nlabels = ["room-2"]\n', idle="5s")
    three = cluster.service.kernel(new_kernel, BATON_COURSE="three")
    cell = three.begin("%%gpu\n6 * 7")
    # The worker comes and lacks the label. While the cell waits for it, no further one is started.
    unmet = "it needs a worker with the label room-3; available: "
    wait_until(lambda: unmet in cluster.says("jobs"), "the queue names the label")
    cluster.wait_for(lambda pool: not pool["workers"], "the worker has left")
    config.write_text('[worker]\nlabels = ["room-3"]\n')
    assert len(cluster.submitted) == 1
    cluster.says("pools", "resume", "slurm-gpu")
    assert cell.finish().ok().value == "42"
    assert len(cluster.submitted) == 2


def test_no_machine_starts_for_what_a_pool_does_not_offer(cluster: Batch, new_kernel: Callable[..., Kernel]) -> None:
    cluster.start_broker()
    text = cluster.config.read_text()
    cluster.service.kill("broker")
    cluster.config.write_text(f'{text}offers = {{ gpu = "h100", gpu_memory = "80G", labels = ["room-2"] }}\n')
    cluster.restart_broker()
    kernel = cluster.service.kernel(new_kernel)
    cell = kernel.begin("%%gpu --gpu a100\n6 * 7")
    offered = "available: pool slurm-gpu (h100; 80 GiB of GPU memory; labels: room-2)"
    unmet = f"it needs a worker with the GPU a100; {offered}"
    wait_until(lambda: unmet in cluster.says("jobs"), "the queue says what there is")
    kernel.interrupt()
    cell.finish()
    cell = kernel.begin("%%gpu --mem 100G\n6 * 7")
    unmet = f"it needs a worker with 100 GiB of GPU memory; {offered}"
    wait_until(lambda: unmet in cluster.says("jobs"), "the queue says what there is")
    assert (cluster.pool["wanted"], cluster.submitted) == (0, [])
    kernel.interrupt()
    cell.finish()
    # The workers have no GPU in this test. What they report counts more than the settings.
    cell = kernel.begin("%%gpu --gpu h100\n6 * 7")
    refused = cell.finish()
    assert refused.error is not None
    assert "have no GPU" in str(refused.error)
    assert len(cluster.submitted) == 1


def test_a_worker_that_is_told_to_end_hands_its_cells_over(cluster: Batch, new_kernel: Callable[..., Kernel]) -> None:
    cluster.start_broker(max=1)
    kernel = cluster.service.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    kernel.gpu("values.append(2)").ok()
    first = cluster.pool["workers"][0]["name"]
    job = cluster.submitted[0]["job"]
    # As Slurm does before the end of a job, and as a spot notice is passed on.
    pid = int((cluster.folder / f"{job}.pid").read_text())

    os.kill(pid, signal.SIGTERM)
    cluster.wait_for(lambda pool: first not in json.dumps(pool["workers"]), "the worker has left")
    done = kernel.gpu("values.append(3)\nvalues").ok()
    assert done.value == "[1, 2, 3]"
    assert done.stderr == ""
    assert len(cluster.submitted) == 2
    assert not cluster.pool["last_failure"]


@pytest.mark.parametrize("warm_starts", ["true", "false"])
def test_a_preempted_cell_ends_with_the_reason(
    cluster: Batch, new_kernel: Callable[..., Kernel], warm_starts: str
) -> None:
    worker = cluster.worker_command(BATON_WORKER_WARM_STARTS=warm_starts)
    cluster.start_broker(max=1, kill_after="2s", worker=worker)
    kernel = cluster.service.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    cell = kernel.begin("%%gpu\nvalues.append(2)\nprint('runs', flush=True)\nimport time\ntime.sleep(600)")
    cell.wait_for_text("runs")
    [job] = [psutil.Process(int(file.read_text())) for file in cluster.running]
    # As Slurm does, to all processes of the job.
    for process in [job, *job.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    stopped = cell.finish().error
    assert stopped is not None
    assert stopped[1].startswith("The worker was stopped while the cell ran. Your variables are as they were before")
    assert kernel.gpu("values.append(3)\nvalues").ok().value == "[1, 3]"


def test_a_worker_that_came_while_the_batch_system_did_not_answer_has_come(
    cluster: Batch, new_kernel: Callable[..., Kernel]
) -> None:
    cluster.start_broker(max=1, command_limit="600s")
    cluster.set("hold")
    cluster.set("stall")
    kernel = cluster.service.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    cell = kernel.begin("%%gpu\nvalues.append(2)")
    wait_until((cluster.folder / "stalled").exists, "the broker asks for the state of the job")
    # From here on, the broker checks no worker until the batch system answers.
    [first] = [worker["name"] for worker in cluster.pool["workers"]]
    [job] = [psutil.Process(int(file.read_text())) for file in cluster.folder.glob("*.pid")]
    cluster.unset("hold")
    cell.finish().ok()
    job.terminate()
    wait_until(lambda: job not in cluster.service.place.processes(), "the job has ended")
    cluster.unset("stall")
    left = cluster.wait_for(lambda pool: first not in json.dumps(pool["workers"]), "the worker has left")
    assert (left["failures"], left["last_failure"]) == (0, None)
    assert left["start"]["middle_ms"] > 0


def test_a_minimum_stays_without_cells(cluster: Batch) -> None:
    cluster.start_broker(min=1, idle="1ms")
    cluster.wait_for(lambda pool: pool["up"] == 1, "the first worker has come")
    assert "--idle-exit" not in cluster.submitted[0]["command"]


def test_a_dry_run_shows_the_commands(cluster: Batch) -> None:
    cluster.start_broker(cancel="/nowhere/scancel {id}")
    tried = run_binary(cluster.service.place, "pools", "test", "slurm-gpu", **cluster.service.access)
    shown = tried.stdout
    assert tried.returncode == 1, tried.stderr
    assert "submit\n" in shown
    assert "--name slurm-gpu-test" in shown
    # Half of the default `kill_after`, which is Slurm's.
    assert "--stop-grace 15000ms" in shown
    assert "/nowhere/scancel is not a program that this user can run" in shown
    assert cluster.submitted == []
    assert token_files(cluster) == []
    unknown = run_binary(cluster.service.place, "pools", "test", "other", **cluster.service.access)
    assert unknown.returncode == 1
    assert "There is no pool other" in unknown.stderr
