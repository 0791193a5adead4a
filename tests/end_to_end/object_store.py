"""A real object store in a folder, on ports of this machine: SeaweedFS."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import requests

from end_to_end.waiting import wait_until

BUCKET = "class"
KEY, SECRET = "baton-test", "only+for/this test"
PROGRAMS = ("master", "volume", "filer", "s3")


class ObjectStore:
    def __init__(self, folder: Path, volumes: int = 40) -> None:
        """Each volume has 64 MB."""
        self.folder = folder
        self._volumes = volumes
        ports = free_ports(2 * len(PROGRAMS))
        self._ports = {name: (ports[2 * place], ports[2 * place + 1]) for place, name in enumerate(PROGRAMS)}
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """With what it had, on the same ports."""
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        command = [str(Path(sys.executable).with_name("weed")), "server", f"-dir={data}", "-ip=127.0.0.1"]
        command += ["-filer", "-s3", "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        command += ["-master.volumeSizeLimitMB=64", f"-volume.max={self._volumes}", "-volume.minFreeSpace=1"]
        for name, (port, grpc) in self._ports.items():
            command += [f"-{name}.port={port}", f"-{name}.port.grpc={grpc}"]
        environment = os.environ | {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._serves, "the object store serves", seconds=120)

    def kill(self) -> None:
        """As a lost machine does it."""
        if self._process:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    @property
    def settings(self) -> dict[str, str]:
        """The environment of a broker that uses it."""
        return {
            "BATON_BROKER_CHUNK_STORE": f"s3://{BUCKET}/baton",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._ports['s3'][0]}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def _serves(self) -> bool:
        files = f"http://127.0.0.1:{self._ports['filer'][0]}/buckets/{BUCKET}/"
        try:
            with requests.Session() as session:
                session.trust_env = False
                made = session.post(files, timeout=5)
                written = session.put(f"{files}ready", data=b"x", timeout=5)
                deleted = session.delete(f"{files}ready", timeout=5)
                refused = session.get(f"http://127.0.0.1:{self._ports['s3'][0]}/{BUCKET}", timeout=5)
        except requests.RequestException:
            return False
        return (made.ok or made.status_code == 409) and written.ok and deleted.ok and refused.status_code == 403


def free_ports(count: int) -> list[int]:
    """All at once, so that none is given twice."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
