"""What starts the workers of an external pool, by KEDA's rules for a ScaledJob.

Of KEDA's documentation (ScaledJob, `scalingStrategy: default`; the trigger metrics-api with `targetValue: "1"`): at
each poll it reads one number, takes at most `maxReplicaCount` of it, subtracts the Jobs that have not ended, whether
their pods run or are pending, and creates as many Jobs as are left. It never ends a Job.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from end_to_end.service import BINARY, Service, end

POOL = "kube-gpu"


class Autoscaler:
    def __init__(self, service: Service, most: int) -> None:
        folder = service.place.folder
        self.token_file = folder / "pool-token"
        self.token_file.write_text("with-this-token-workers-join-the-pool\n")
        self.monitor_token_file = folder / "monitor-token"
        self.monitor_token_file.write_text("with-this-token-keda-reads-numbers\n")
        self.pods: list[subprocess.Popen[bytes]] = []
        self.read: list[int] = []
        self._service = service
        self._most = most

    def settings(self, **more: object) -> str:
        """The broker's configuration file."""
        lines = {
            "name": POOL,
            "provider": "external",
            "max": self._most,
            "token_file": str(self.token_file),
            "target_wait": "1s",
            **more,
        }
        pool = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
        return f'[broker]\nmonitor_token_file = "{self.monitor_token_file}"\n\n[[pool]]\n{pool}'

    @property
    def running(self) -> list[subprocess.Popen[bytes]]:
        return [pod for pod in self.pods if pod.poll() is None]

    def poll(self, field: str = "processes") -> None:
        """As after each `pollingInterval`. A number that cannot be read changes nothing."""
        wanted = self.scale().get(field)
        if wanted is None:
            return
        self.read.append(wanted)
        for _ in range(min(wanted, self._most) - len(self.running)):
            self._create_pod()

    def scale(self) -> dict[str, Any]:
        import httpx

        headers = {"Authorization": f"Bearer {self.monitor_token_file.read_text().strip()}"}
        with suppress(httpx.TransportError):
            answer = httpx.get(f"{self._service.address}/v1/scale/{POOL}", headers=headers, timeout=5)
            if answer.is_success:
                scale: dict[str, Any] = answer.json()
                return scale
        return {}

    def log(self, number: int) -> str:
        return self._log_file(number).read_text()

    def close(self) -> None:
        end(self.running)

    def _create_pod(self) -> None:
        number = len(self.pods)
        name = f"baton-worker-{number}"
        own = {
            "BATON_BROKER_ADDRESS": self._service.address,
            "BATON_TOKEN_FILE": str(self.token_file),
            "BATON_WORKER_POOL": POOL,
            "BATON_WORKER_NAME": name,
            "BATON_WORKER_SLOTS": "1",
        }
        with self._log_file(number).open("wb") as log:
            pod = subprocess.Popen(
                [BINARY, "worker"],
                env=self._service.place.environment | own,
                cwd=self._service.place.work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.pods.append(pod)

    def _log_file(self, number: int) -> Path:
        return self._service.place.folder / f"pod-{number}.log"
