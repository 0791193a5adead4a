"""A pool on a real Grid Engine, with the commands of the guide: another batch system needs only configuration."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from batch.gridengine import GridEngine, is_installed
from end_to_end import Kernel
from end_to_end.cluster import Cluster
from end_to_end.ports import free_port, free_ports
from end_to_end.runs import held

pytestmark = [
    pytest.mark.root("start sge_execd"),
    pytest.mark.skipif(
        not is_installed(), reason="NOT TESTED: Grid Engine (gridengine-master, -exec, -client) is not installed"
    ),
]

GUIDE = Path(__file__).parent.parent / "docs/guides/pools.md"


class GridEngineCluster(Cluster):
    name = "grid-engine"

    def __init__(self) -> None:
        super().__init__(free_port())
        self.batch = GridEngine(self.service.place.folder / "grid-engine", free_ports(2))
        self.environment = self.batch.environment
        self.batch.start()

    def end_jobs(self) -> None:
        self.batch.close()

    def start_broker(self, **settings: object) -> None:
        """Configured as in the guide, with workers in the test's place."""
        [section] = [
            block for block in re.findall(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "qsub" in block
        ]
        [pool] = tomllib.loads(section)["pool"]
        super().start_broker(**pool | {"worker": self.worker_command()} | settings)


@pytest.fixture
def cluster() -> Iterator[GridEngineCluster]:
    cluster = GridEngineCluster()
    yield cluster
    cluster.close()


def test_workers_come_leave_and_are_replaced(cluster: GridEngineCluster, new_kernel: Callable[..., Kernel]) -> None:
    cluster.start_broker(idle="5s", walltime="10m")
    assert "is not a program" not in cluster.says("pools", "test", cluster.name)
    kernel = cluster.service.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    code, go = held(cluster.service.place, "go")
    cell = kernel.begin(f"%%gpu\nvalues.append(2)\n{code}")
    cell.wait_for_text("begun")
    [worker] = cluster.pool["workers"]
    # After the broker's death, the same job is recognised.
    cluster.service.kill("broker")
    cluster.restart_broker()
    again = cluster.wait_for(lambda pool: pool["up"] == 1, "the worker is known again")
    assert [worker["job"] for worker in again["workers"]] == [worker["job"]]
    go.touch()
    cell.finish().ok()
    # An administrator deletes it without a warning. The variables are in the notebook.
    cluster.batch.runs("qdel", worker["job"])
    cluster.wait_for(lambda pool: not pool["workers"], "Grid Engine says that the job has ended")
    assert kernel.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 3]"
    left = cluster.wait_for(lambda pool: not pool["workers"], "the next worker has left")
    assert (left["failures"], left["paused"]) == (0, False)


def test_a_worker_for_which_there_is_no_gpu_waits_in_the_queue(
    cluster: GridEngineCluster, new_kernel: Callable[..., Kernel]
) -> None:
    cluster.start_broker(idle="5s", max=3, start_limit="600s")
    code, go = held(cluster.service.place, "go")
    cells = [cluster.service.kernel(new_kernel).begin(f"%%gpu\n{code}\n6 * 7") for _ in range(4)]
    # There are two GPUs; the third worker waits in the queue of the batch system.
    queued = cluster.wait_for(
        lambda pool: {"connected", "queued"} <= {worker["state"] for worker in pool["workers"]},
        "one worker is queued",
    )
    assert queued["failures"] == 0
    go.touch()
    assert [cell.finish().ok().value for cell in cells] == ["42"] * 4
