"""A broker with a pool, and the batch system behind it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from batch.batch import is_alive, submissions

from end_to_end.place import MARK, Place
from end_to_end.service import BINARY, Service, run_binary
from end_to_end.waiting import wait_until

WORKER_VARIABLES = (
    *("BATON_WORKER_SANDBOX", "BATON_WORKER_READABLE", "BATON_WORKER_SESSION_ENVIRONMENT"),
    *(MARK, "XDG_RUNTIME_DIR"),
)
BATCH = Path(__file__).parents[1] / "batch/batch.py"


class Cluster:
    """Uses TCP, so tokens are needed."""

    name = "slurm-gpu"
    """The name of its pool."""

    def __init__(self, port: int) -> None:
        self.service = Service(Place.create(), listen=f"http://127.0.0.1:{port}")
        self.config = self.service.place.folder / "broker.toml"
        self.environment: dict[str, str] = {}

    def start_broker(self, **settings: object) -> None:
        lines = {"name": self.name, "provider": "command", "max": 2, "idle": "600s", "check": "200ms", **settings}
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
        self.config.write_text(f"[[pool]]\n{text}")
        self.restart_broker()

    def restart_broker(self) -> None:
        self.service.start_broker(BATON_CONFIG=str(self.config), **self.environment)
        wait_until(lambda: json.loads(self.says("pools", "--json")), "the pool is known")

    def end_jobs(self) -> None:
        """Ends the jobs of the batch system, which ends as well."""

    def close(self) -> None:
        try:
            self.end_jobs()
        finally:
            left = self.service.close()
        assert left == []

    def worker_command(self, **environment: str) -> str:
        """The command of a worker in the test's place, as an administrator's prolog would set it up."""
        own = self.service.place.environment | environment
        variables = [f"{name}={own[name]}" for name in (*WORKER_VARIABLES, *environment) if name in own]
        return shlex.join(["env", *variables, str(BINARY), "worker", "--slots", "1"])

    def says(self, *arguments: str) -> str:
        said = run_binary(self.service.place, *arguments, **self.service.access)
        assert said.returncode == 0, said.stderr
        return said.stdout

    @property
    def pool(self) -> dict[str, Any]:
        pools: list[dict[str, Any]] = json.loads(self.says("pools", "--json"))
        assert [pool["pool"] for pool in pools] == [self.name]
        return pools[0]

    def wait_for(self, condition: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
        pool: dict[str, Any] = {}

        def reached() -> bool:
            pool.update(self.pool)
            return bool(condition(pool))

        try:
            wait_until(reached, what)
        except AssertionError as error:
            error.add_note(f"{json.dumps(pool, indent=1)}\n{self.jobs_described()}")
            raise
        return pool

    def jobs_described(self) -> str:
        """What the batch system says about its jobs and nodes."""
        return ""


class Batch(Cluster):
    """Uses the small batch system of the tests."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.folder = self.service.place.folder / "batch"
        self.folder.mkdir()
        (self.folder / "environment.json").write_text(json.dumps(self.service.place.environment))

    def start_broker(self, **settings: object) -> None:
        call = f"{sys.executable} {BATCH} {self.folder}"
        commands = {
            "submit": f"{call} submit {{command}}",
            "find": f"{call} find {{name}}",
            "status": f"{call} status {{id}}",
            "cancel": f"{call} cancel {{id}}",
            "expected": f"{call} expected {{id}}",
        }
        super().start_broker(**(commands | settings))

    def set(self, name: str) -> None:
        (self.folder / name).touch()

    def unset(self, name: str) -> None:
        (self.folder / name).unlink()

    @property
    def cancelled(self) -> list[str]:
        """The ids of the jobs that the broker has cancelled."""
        file = self.folder / "cancelled"
        return file.read_text().split() if file.exists() else []

    @property
    def submitted(self) -> list[dict[str, Any]]:
        return submissions(self.folder) if (self.folder / "submitted").exists() else []

    @property
    def running(self) -> list[Path]:
        """The files with the process ids of jobs that have not ended."""
        return [file for file in self.folder.glob("*.pid") if is_alive(int(file.read_text()))]

    def end_jobs(self) -> None:
        for file in self.folder.glob("*.pid"):
            with suppress(ProcessLookupError):
                os.killpg(int(file.read_text()), signal.SIGTERM)
