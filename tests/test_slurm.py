"""Pools on a real Slurm, with the default commands. Debian's `slurm-wlm` and root are needed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

import pytest
from end_to_end import Kernel
from end_to_end.cluster import Cluster, free_port
from end_to_end.place import MARK
from end_to_end.service import BINARY
from slurm.slurm import Slurm, is_installed

pytestmark = pytest.mark.skipif(not is_installed(), reason="Slurm (slurm-wlm) is not installed, or this is not root")

WORKER_VARIABLES = ("BATON_WORKER_SANDBOX", "BATON_WORKER_READABLE", "BATON_WORKER_SESSION_ENVIRONMENT", MARK)
STARTS_SECONDS = 60


class SlurmCluster(Cluster):
    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.slurm = Slurm(self.service.place.folder / "slurm")
        self.environment = self.slurm.environment
        self.slurm.start()

    def start_broker(self, **settings: object) -> None:
        """Workers are of the test's place, as an administrator's prolog would set them up."""
        own = self.service.place.environment
        variables = [f"{name}={own[name]}" for name in (*WORKER_VARIABLES, "XDG_RUNTIME_DIR") if name in own]
        worker = shlex.join(["env", *variables, str(BINARY), "worker", "--slots", "1"])
        super().start_broker(worker=worker, **settings)

    def jobs(self) -> list[str]:
        return self.slurm.runs("squeue", "--noheader", "--format=%i %T").split("\n")


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(free_port())
    yield cluster
    cluster.slurm.close()
    assert cluster.service.close() == []


def test_a_burst_starts_workers_and_a_killed_broker_finds_them(
    cluster: SlurmCluster, new_kernel: Callable[..., Kernel]
) -> None:
    cluster.start_broker(idle="5s", walltime="10m")
    signs = cluster.service.place.signs
    kernels = [cluster.service.kernel(new_kernel) for _ in range(3)]
    code = f"import os, time\nwhile not os.path.exists('{signs}/go'):\n    time.sleep(0.05)\n6 * 7"
    cells = [kernel.begin(f"%%gpu\n{code}") for kernel in kernels]
    both = cluster.wait_for(lambda pool: pool["up"] == 2, "two workers have come", STARTS_SECONDS)
    assert sorted(worker["job"] for worker in both["workers"]) == ["1", "2"]
    assert sorted(line for line in cluster.jobs() if line) == ["1 RUNNING", "2 RUNNING"]
    cluster.service.kill("broker")
    cluster.restart_broker()
    again = cluster.wait_for(lambda pool: pool["up"] == 2, "both workers are known again")
    assert again["workers"] == both["workers"]
    (signs / "go").touch()
    assert [cell.finish().ok().value for cell in cells] == ["42"] * 3
    cluster.wait_for(lambda pool: not pool["workers"], "the workers have left", STARTS_SECONDS)
    assert not any("RUNNING" in line for line in cluster.jobs())


def test_a_cancelled_job_and_one_that_is_refused(cluster: SlurmCluster, new_kernel: Callable[..., Kernel]) -> None:
    cluster.start_broker(max=1, walltime="10m")
    kernel = cluster.service.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    kernel.gpu("values.append(2)", seconds=STARTS_SECONDS).ok()
    # Slurm sends SIGTERM, as it does before the end of a job.
    cluster.slurm.runs("scancel", "--batch", "--signal=TERM", "1")
    cluster.wait_for(lambda pool: not pool["workers"], "the worker has left", STARTS_SECONDS)
    assert kernel.gpu("values.append(3)\nvalues", seconds=STARTS_SECONDS).ok().value == "[1, 2, 3]"
    assert [worker["job"] for worker in cluster.pool["workers"]] == ["2"]
    cluster.slurm.runs("scontrol", "update", "PartitionName=gpu", "State=INACTIVE")
    cluster.slurm.runs("scancel", "2")
    cluster.wait_for(lambda pool: not pool["workers"], "the second worker has left", STARTS_SECONDS)
    waiting = kernel.begin("%%gpu\nvalues.append(4)\nvalues")
    paused = cluster.wait_for(lambda pool: pool["paused"], "the pool is paused")
    assert "sbatch: error:" in paused["last_failure"]
    cluster.slurm.runs("scontrol", "update", "PartitionName=gpu", "State=UP")
    cluster.says("pools", "resume", "slurm-gpu")
    assert waiting.finish(seconds=STARTS_SECONDS).ok().value == "[1, 2, 3, 4]"


def test_a_requeued_job_is_the_same_worker_again(cluster: SlurmCluster, new_kernel: Callable[..., Kernel]) -> None:
    cluster.start_broker(max=1, walltime="10m")
    kernel = cluster.service.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    kernel.gpu("values.append(2)", seconds=STARTS_SECONDS).ok()
    # As when a partition with a higher priority takes the node: the same job begins again, with the same token.
    cluster.slurm.runs("scontrol", "requeuehold", "1")
    cluster.wait_for(lambda pool: pool["workers"][0]["state"] == "queued", "the job waits again", STARTS_SECONDS)
    cluster.slurm.runs("scontrol", "release", "1")
    # Slurm lets a requeued job wait two minutes otherwise.
    cluster.slurm.runs("scontrol", "update", "JobId=1", "StartTime=now")
    assert kernel.gpu("values.append(3)\nvalues", seconds=2 * STARTS_SECONDS).ok().value == "[1, 2, 3]"
    assert [worker["job"] for worker in cluster.pool["workers"]] == ["1"]
