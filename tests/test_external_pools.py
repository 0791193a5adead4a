"""Pools whose workers are started externally: an autoscaler reads a number, and each worker joins by itself."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from end_to_end import Kernel
from end_to_end.autoscaler import Autoscaler, Pod
from end_to_end.kernel import Cell
from end_to_end.place import Place
from end_to_end.ports import free_port
from end_to_end.service import BINARY, Service, run_binary
from end_to_end.waiting import wait_until

POOL = "kube-gpu"


class Cloud:
    def __init__(self, most: int = 2) -> None:
        self.service = Service(Place.create(), listen=f"http://127.0.0.1:{free_port()}")
        folder = self.service.place.folder
        self.token_file = folder / "pool-token"
        self.token_file.write_text("with-this-token-workers-join-the-pool\n")
        self.monitor_token_file = folder / "monitor-token"
        self.monitor_token_file.write_text("with-this-token-keda-reads-numbers\n")
        self.config = folder / "broker.toml"
        self.autoscaler = Autoscaler(
            url=f"{self.service.address}/v1/scale/{POOL}",
            token=self.monitor_token_file.read_text().strip(),
            most=most,
            create=self.create_pod,
        )

    def create_pod(self, name: str) -> Pod:
        own = {
            "BATON_BROKER_ADDRESS": self.service.address,
            "BATON_TOKEN_FILE": str(self.token_file),
            "BATON_WORKER_POOL": POOL,
            "BATON_WORKER_NAME": name,
            "BATON_WORKER_SLOTS": "1",
        }
        with (self.service.place.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [BINARY, "worker"],
                env=self.service.place.environment | own,
                cwd=self.service.place.work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def settings(self, **more: object) -> str:
        """The broker's configuration file."""
        lines = {
            "name": POOL,
            "provider": "external",
            "max": self.autoscaler.most,
            "token_file": str(self.token_file),
            "target_wait": "1s",
            **more,
        }
        pool = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
        return f'[broker]\nmonitor_token_file = "{self.monitor_token_file}"\n\n[[pool]]\n{pool}'

    def start_broker(self, **pool: object) -> None:
        self.config.write_text(self.settings(**pool))
        self.restart_broker()

    def restart_broker(self) -> None:
        self.service.start_broker(BATON_CONFIG=str(self.config))
        wait_until(self.autoscaler.scale, "the pool is known")

    @property
    def pool(self) -> dict[str, Any]:
        said = run_binary(self.service.place, "pools", "--json", **self.service.access)
        assert said.returncode == 0, said.stderr
        [pool] = json.loads(said.stdout)
        assert isinstance(pool, dict)
        return pool

    def jobs(self) -> list[dict[str, Any]]:
        said = run_binary(self.service.place, "jobs", "--json", **self.service.access)
        assert said.returncode == 0, said.stderr
        jobs: list[dict[str, Any]] = json.loads(said.stdout)
        return jobs

    def poll_until(self, condition: Callable[[], object], what: str) -> None:
        def reached() -> bool:
            self.autoscaler.poll()
            return bool(condition())

        wait_until(reached, what)


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    cloud = Cloud()
    yield cloud
    cloud.autoscaler.close()
    assert cloud.service.close() == []


def holding(cloud: Cloud, new_kernel: Callable[..., Kernel], name: str) -> Cell:
    """A cell that runs until the file with its name exists."""
    kernel = cloud.service.kernel(new_kernel, BATON_TEST_SIGN=str(cloud.service.place.signs / name))
    kernel.run("import os; sign = os.environ['BATON_TEST_SIGN']").ok()
    return kernel.begin(
        "%%gpu\nimport os, time\nprint('runs')\nwhile not os.path.exists(sign): time.sleep(0.05)\n'done'"
    )


def test_an_autoscaler_starts_as_many_workers_as_are_needed_and_none_twice(
    cloud: Cloud, new_kernel: Callable[..., Kernel]
) -> None:
    cloud.start_broker(idle="1s")
    cloud.autoscaler.poll()
    assert (cloud.autoscaler.read, cloud.autoscaler.pods) == ([0], [])
    # Three people, and at most two machines.
    cells = {name: holding(cloud, new_kernel, name) for name in ("ada", "bob", "cid")}
    waits = "A GPU machine is being started"
    cells["ada"].wait_for(lambda result: waits in str(result.outputs), "the line says what is awaited")
    wait_until(lambda: len(cloud.jobs()) == 3, "all have been sent")
    cloud.poll_until(lambda: cloud.pool["up"] == 2, "two workers have joined")
    for name in cells:
        (cloud.service.place.signs / name).touch()
    for cell in cells.values():
        while not cell.done:
            cloud.autoscaler.poll()
            cell.kernel.pump(0.05)
        assert cell.finish().ok().value == "'done'"
    assert len(cloud.autoscaler.pods) == 2
    assert max(cloud.autoscaler.read) == 2
    pods = {worker["job"] for worker in cloud.pool["workers"]}
    assert pods <= {"baton-worker-0", "baton-worker-1"}
    # Each leaves by itself, and its Job is complete.
    assert [pod.wait(timeout=60) for pod in cloud.autoscaler.pods] == [0, 0]
    wait_until(lambda: cloud.autoscaler.scale()["processes"] == 0, "the broker knows that they have ended")
    cloud.autoscaler.poll()
    assert cloud.autoscaler.read[-1] == 0
    assert len(cloud.autoscaler.pods) == 2


def test_a_pod_that_is_evicted_is_replaced_at_once(cloud: Cloud, new_kernel: Callable[..., Kernel]) -> None:
    cloud.start_broker(idle="600s")
    kernel = cloud.service.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    cell = kernel.begin("%%gpu\nvalues.append(2)")
    cloud.poll_until(lambda: cloud.autoscaler.pods, "a pod is created")
    cell.finish().ok()
    held = holding(cloud, new_kernel, "held")
    held.wait_for_text("runs")
    cloud.autoscaler.running[0].send_signal(signal.SIGTERM)
    # It still runs its cell, so there is one process, but no worker that accepts cells.
    expected = {"pool": POOL, "wanted": 0, "processes": 1}
    wait_until(lambda: cloud.autoscaler.scale() == expected, "the worker leaves")
    cloud.autoscaler.poll()
    assert len(cloud.autoscaler.pods) == 1
    cell = kernel.begin("%%gpu\nvalues.append(3)\nvalues")
    cloud.poll_until(lambda: cloud.pool["up"] == 1, "another one has joined")
    assert len(cloud.autoscaler.running) == 2
    assert cell.finish().ok().value == "[1, 2, 3]"
    (cloud.service.place.signs / "held").touch()
    assert held.finish().ok().value == "'done'"
    assert cloud.autoscaler.pods[0].wait(timeout=60) == 0
    wait_until(lambda: cloud.autoscaler.scale()["processes"] < 2, "the broker knows that it has ended")
    cloud.autoscaler.poll()
    assert len(cloud.autoscaler.pods) == 2


def test_a_killed_broker_knows_who_joined(cloud: Cloud, new_kernel: Callable[..., Kernel]) -> None:
    cloud.start_broker(idle="600s")
    kernel = cloud.service.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    cell = kernel.begin("%%gpu\nvalues.append(2)\nvalues")
    cloud.poll_until(lambda: cloud.autoscaler.pods, "a pod is created")
    assert cell.finish().ok().value == "[1, 2]"
    [before] = cloud.pool["workers"]
    cloud.service.kill("broker")
    cloud.autoscaler.poll()
    cloud.restart_broker()
    assert kernel.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 3]"
    [after] = cloud.pool["workers"]
    assert (after["name"], after["job"]) == (before["name"], "baton-worker-0")
    cloud.autoscaler.poll()
    assert len(cloud.autoscaler.pods) == 1


def test_a_worker_that_may_not_join_says_why(cloud: Cloud) -> None:
    cloud.start_broker(max=1)
    access = {"BATON_BROKER_ADDRESS": cloud.service.address, "BATON_TOKEN_FILE": str(cloud.token_file)}
    elsewhere = run_binary(cloud.service.place, "worker", "--pool", "other", **access)
    assert elsewhere.returncode == 1
    assert "Failed to join pool other" in elsewhere.stderr
    assert f"lets workers join pool {POOL}, and nothing else" in elsewhere.stderr
    plain = run_binary(cloud.service.place, "worker", **access)
    assert plain.returncode == 1
    wrong = run_binary(
        cloud.service.place, "worker", "--pool", POOL, **(access | {"BATON_TOKEN": "not-the-token-of-the-pool"})
    )
    assert wrong.returncode == 1
    assert "does not accept this token" in wrong.stderr
    said = run_binary(cloud.service.place, "pools", "test", POOL, **cloud.service.access)
    assert f"/v1/scale/{POOL}" in said.stdout


def test_a_pool_s_token_is_not_a_cell_s(cloud: Cloud, new_kernel: Callable[..., Kernel]) -> None:
    cloud.start_broker()
    kernel = cloud.service.kernel(new_kernel)
    kernel.run(f"path = {str(cloud.token_file)!r}").ok()
    cell = kernel.begin(
        "%%gpu\nimport os\nos.path.exists(path), sorted(name for name in os.environ if 'TOKEN' in name)"
    )
    cloud.poll_until(lambda: cloud.autoscaler.pods, "a pod is created")
    assert cell.finish().ok().value == "(False, [])"


def test_a_configuration_is_checked_before_it_is_used(cloud: Cloud) -> None:
    cloud.config.write_text(cloud.settings())
    checked = run_binary(cloud.service.place, "config", "check", str(cloud.config))
    assert (checked.returncode, checked.stdout) == (0, "The settings are valid\n")
    for wrong, why in {"submit": "submit is for provider", "colour": "colour"}.items():
        cloud.config.write_text(cloud.settings(**{wrong: "x"}))
        checked = run_binary(cloud.service.place, "config", "check", str(cloud.config))
        assert checked.returncode == 1
        assert why in checked.stderr
