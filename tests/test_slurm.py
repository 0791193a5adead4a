"""Pools on a real Slurm, with the default commands. Debian's `slurm-wlm` and root are needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from end_to_end import Kernel
from end_to_end.ports import free_port
from slurm.cluster import SlurmCluster
from slurm.slurm import is_installed

pytestmark = [
    pytest.mark.root("start slurmd"),
    pytest.mark.skipif(not is_installed(), reason="NOT TESTED: Slurm (slurm-wlm) is not installed"),
]


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(free_port(), EnforcePartLimits="ALL")
    yield cluster
    cluster.close()


@pytest.fixture
def one_gpu() -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(free_port(), gpus=1)
    yield cluster
    cluster.close()


@pytest.fixture
def two_nodes() -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(free_port(), nodes=2, gpus=1)
    yield cluster
    cluster.close()


@pytest.fixture
def preempting() -> Iterator[SlurmCluster]:
    """Its second partition takes the node from jobs of the first."""
    lines = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
    cluster = SlurmCluster(free_port(), gpus=1, **lines)
    yield cluster
    cluster.close()


def test_a_burst_starts_workers_and_a_killed_broker_finds_them(
    cluster: SlurmCluster, new_kernel: Callable[..., Kernel]
) -> None:
    # On a busy machine, workers may find the restarted broker late. Nothing replaces them meanwhile.
    cluster.environment["BATON_BROKER_WORKER_GRACE"] = "60s"
    cluster.start_broker(idle="5s", walltime="10m")
    signs = cluster.service.place.signs
    kernels = [cluster.service.kernel(new_kernel) for _ in range(3)]
    code = f"import os, time\nwhile not os.path.exists('{signs}/go'):\n    time.sleep(0.05)\n6 * 7"
    cells = [kernel.begin(f"%%gpu\n{code}") for kernel in kernels]
    both = cluster.wait_for(lambda pool: pool["up"] == 2, "two workers have come")
    assert sorted(worker["job"] for worker in both["workers"]) == ["1", "2"]
    assert sorted(cluster.jobs()) == ["1 RUNNING", "2 RUNNING"]
    cluster.service.kill("broker")
    cluster.restart_broker()
    cluster.wait_for(lambda pool: pool["workers"] == both["workers"], "both workers are connected again")
    (signs / "go").touch()
    assert [cell.finish().ok().value for cell in cells] == ["42"] * 3
    cluster.wait_for(lambda pool: not pool["workers"], "the workers have left")
    assert not any("RUNNING" in line for line in cluster.jobs())


def test_a_cancelled_job_and_one_that_is_refused(cluster: SlurmCluster, new_kernel: Callable[..., Kernel]) -> None:
    cluster.start_broker(max=1, walltime="10m")
    kernel = cluster.service.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    kernel.gpu("values.append(2)").ok()
    # Slurm sends SIGTERM, as it does before the end of a job.
    cluster.slurm.runs("scancel", "--batch", "--signal=TERM", "1")
    cluster.wait_for(lambda pool: not pool["workers"], "the worker has left")
    assert kernel.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 3]"
    assert [worker["job"] for worker in cluster.pool["workers"]] == ["2"]
    # Slurm refuses jobs that ask for more time.
    cluster.slurm.runs("scontrol", "update", "PartitionName=gpu", "MaxTime=1")
    cluster.slurm.runs("scancel", "2")
    cluster.wait_for(lambda pool: not pool["workers"], "the second worker has left")
    waiting = kernel.begin("%%gpu\nvalues.append(4)\nvalues")
    paused = cluster.wait_for(lambda pool: pool["paused"], "the pool is paused")
    assert "Requested time limit is invalid" in paused["last_failure"]
    cluster.slurm.runs("scontrol", "update", "PartitionName=gpu", "MaxTime=INFINITE")
    cluster.says("pools", "resume", "slurm-gpu")
    assert waiting.finish().ok().value == "[1, 2, 3, 4]"


def test_a_job_that_a_partition_preempts_is_replaced(
    preempting: SlurmCluster, new_kernel: Callable[..., Kernel]
) -> None:
    cluster = preempting
    cluster.start_broker(max=1, walltime="10m")
    kernel = cluster.service.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    kernel.gpu("values.append(2)").ok()
    # Slurm does not start it again by itself: the broker requests another worker as soon as a cell waits.
    urgent = cluster.submit_urgent_job()
    cluster.wait_for(lambda pool: not pool["workers"], "the worker has left")
    waiting = kernel.begin("%%gpu\nvalues.append(3)\nvalues")
    cluster.wait_for(lambda pool: pool["workers"] and pool["workers"][0]["state"] == "queued", "another one is awaited")
    cluster.slurm.runs("scancel", urgent)
    assert waiting.finish().ok().value == "[1, 2, 3]"


def test_a_preempted_cell_ends_with_the_reason_before_slurm_kills_it(
    preempting: SlurmCluster, new_kernel: Callable[..., Kernel]
) -> None:
    cluster = preempting
    # Slurm kills the job 30 seconds (`KillWait`) after SIGTERM.
    cluster.start_broker(max=1, walltime="10m", kill_after="6s")
    kernel = cluster.service.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    cell = kernel.begin("%%gpu\nvalues.append(2)\nprint('runs', flush=True)\nimport time\ntime.sleep(600)")
    cell.wait_for_text("runs")
    urgent = cluster.submit_urgent_job()
    stopped = cell.finish().error
    assert stopped is not None
    assert stopped[1].startswith("The worker was stopped while the cell ran. Your variables are as they were before")
    cluster.slurm.runs("scancel", urgent)
    assert kernel.gpu("values.append(3)\nvalues").ok().value == "[1, 3]"


def test_slurm_says_when_a_queued_worker_begins(one_gpu: SlurmCluster, new_kernel: Callable[..., Kernel]) -> None:
    cluster = one_gpu
    cluster.start_broker(max=2, walltime="10m")
    signs = cluster.service.place.signs
    wait = f"%%gpu\nimport os, time\nwhile not os.path.exists('{signs}/go'):\n    time.sleep(0.05)"
    cells = [cluster.service.kernel(new_kernel).begin(wait) for _ in range(2)]
    queued = cluster.wait_for(lambda pool: any(worker["expected_ms"] for worker in pool["workers"]), "it is expected")
    [expected] = [worker["expected_ms"] for worker in queued["workers"] if worker["state"] == "queued"]
    # The first job runs for at most ten minutes.
    assert 0 < expected / 1000 - time.time() < 660
    (signs / "go").touch()
    for cell in cells:
        cell.finish().ok()


def test_a_preempted_job_that_is_requeued_is_the_same_worker_again(
    preempting: SlurmCluster, new_kernel: Callable[..., Kernel]
) -> None:
    cluster = preempting
    submit = 'sbatch --parsable --requeue --gpus=1 --time={walltime} --wrap "exec {command}"'
    cluster.start_broker(max=1, walltime="10m", submit=submit)
    kernel = cluster.service.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    kernel.gpu("values.append(2)").ok()
    before = cluster.pool["workers"]
    urgent = cluster.submit_urgent_job()
    cluster.wait_for(lambda pool: pool["workers"][0]["state"] == "queued", "the job waits again")
    cluster.slurm.runs("scancel", urgent)
    [name] = [worker["name"] for worker in before]
    again = {"name": name, "state": "connected"}

    def has_come_again(pool: dict[str, Any]) -> bool:
        # Slurm makes a requeued job wait two minutes, from when its former run is cleaned up. Nodes refuse it in the
        # second in which they ended that run.
        if cluster.seconds_to_begin("1") > 10:
            cluster.slurm.runs("scontrol", "update", "JobId=1", "StartTime=now+2")
        return any(again.items() <= worker.items() for worker in pool["workers"])

    cluster.wait_for(has_come_again, "it has come again")
    assert kernel.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 3]"
    assert [worker["name"] for worker in cluster.pool["workers"]] == [name]


def test_a_node_that_dies_is_replaced_before_slurm_notices(
    two_nodes: SlurmCluster, new_kernel: Callable[..., Kernel]
) -> None:
    cluster = two_nodes
    cluster.start_broker(max=1, walltime="10m")
    kernel = cluster.service.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    kernel.gpu("values.append(2)").ok()
    [node] = cluster.busy_nodes()
    cluster.slurm.kill_node(node)
    assert kernel.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 3]"
    states = {"1": "disconnected", "2": "connected"}
    cluster.wait_for(
        lambda pool: {worker["job"]: worker["state"] for worker in pool["workers"]} == states, "both are listed"
    )
    assert sorted(cluster.jobs()) == ["1 RUNNING", "2 RUNNING"]
    cluster.slurm.give_up(node)
    cluster.wait_for(lambda pool: len(pool["workers"]) == 1, "Slurm has given the node up")
    # It had connected, so its end is not a failure of the pool.
    assert cluster.pool["failures"] == 0
