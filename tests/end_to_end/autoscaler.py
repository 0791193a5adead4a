"""Starts the workers of an external pool, by KEDA's rules for a ScaledJob.

From KEDA's documentation (ScaledJob, `scalingStrategy: default`; the trigger metrics-api with `targetValue: "1"`): at
each poll it reads one number, limits it to `maxReplicaCount`, subtracts the Jobs that have not ended, whether their
pods are running or pending, and creates that many Jobs. It never ends a Job.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from end_to_end.service import end

Pod = subprocess.Popen[bytes]


@dataclass
class Autoscaler:
    url: str
    token: str
    most: int
    create: Callable[[str], Pod]
    """Starts a pod with this name."""
    value_location: str = "processes"
    pods: list[Pod] = field(default_factory=list)
    read: list[int] = field(default_factory=list)

    @property
    def running(self) -> list[Pod]:
        return [pod for pod in self.pods if pod.poll() is None]

    def poll(self) -> None:
        """One poll, as after each `pollingInterval`. If the number cannot be read, nothing changes."""
        wanted = self.scale().get(self.value_location)
        if wanted is None:
            return
        self.read.append(wanted)
        for _ in range(min(wanted, self.most) - len(self.running)):
            self.pods.append(self.create(f"baton-worker-{len(self.pods)}"))

    def scale(self) -> dict[str, Any]:
        import httpx

        headers = {"Authorization": f"Bearer {self.token}"}
        with suppress(httpx.TransportError):
            answer = httpx.get(self.url, headers=headers, timeout=60, verify=False)
            if answer.is_success:
                scale: dict[str, Any] = answer.json()
                return scale
        return {}

    def close(self) -> None:
        end(self.running)
