"""Tokens of the worker, the broker and the Hub: no cell finds them in its environment or in that of the worker."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from end_to_end import Kernel, Place, Service, wait_until
from end_to_end.ports import free_port
from end_to_end.service import BINARY, TOKEN

NOBODY = 65534

SECRETS: dict[str, Any] = {
    name: uuid.uuid4().hex
    for name in (
        "AWS_SECRET_ACCESS_KEY",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "BATON_BROKER_HUB_TOKEN",
        "CREDENTIALS_DIRECTORY",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "HF_TOKEN",
        "JUPYTERHUB_API_TOKEN",
        "JUPYTER_TOKEN",
        "PGPASSWORD",
    )
}

LOOK = """
import os
with open("/proc/self/environ", "rb") as file:
    first = dict(entry.partition(b"=")[::2] for entry in file.read().split(b"\\0") if entry)
seen = dict(os.environ), {name.decode(): value.decode() for name, value in first.items()}
"""


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service(Place.create(), f"http://127.0.0.1:{free_port()}")
    yield service
    left = service.close()
    assert not left, f"Processes left behind: {left}"


@pytest.mark.parametrize("through", ["environment", "file", "credential"])
def test_a_session_inherits_no_secret(service: Service, new_kernel: Callable[..., Kernel], through: str) -> None:
    service.start_broker(**SECRETS)
    secret = service.place.folder / "token"
    secret.write_text(TOKEN)
    ways: dict[str, dict[str, Any]] = {
        "environment": {},
        "file": {"BATON_TOKEN": "", "BATON_TOKEN_FILE": str(secret)},
        "credential": {"BATON_TOKEN": "", "CREDENTIALS_DIRECTORY": str(secret.parent)},
    }
    more = {"COURSE_DATA": "/data", "COURSE": "secret", "PYTHONHASHSEED": "7"}
    more["BATON_WORKER_SESSION_ENVIRONMENT"] = "PLACE_OF_THIS_TEST,COURSE_*"
    service.start_worker(**(SECRETS | ways[through] | more))
    kernel = service.kernel(new_kernel)
    kernel.gpu(LOOK).ok()
    for environment in kernel.evaluate("seen"):
        assert environment["COURSE_DATA"] == "/data"
        assert environment["PYTHONHASHSEED"] == "7"
        # It is preceded by the folder of programs that the student installs.
        assert environment["PATH"].endswith(os.environ["PATH"])
        assert not {"COURSE", "BATON_TOKEN", "BATON_TOKEN_FILE", *SECRETS} & set(environment)
        told = " ".join(environment.values())
        assert not [secret for secret in (TOKEN, *SECRETS.values()) if secret in told]


@pytest.mark.root("start programs of another user")
@pytest.mark.parametrize("command", ["worker", "broker", "up"])
def test_no_process_of_the_same_user_reads_what_a_service_was_started_with(command: str) -> None:
    """A session is such a process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "baton"
        shutil.copy(BINARY, program)
        for path in (folder, program):
            os.chown(path, NOBODY, NOBODY)
        environment = {"HOME": name, "XDG_RUNTIME_DIR": name, "BATON_TOKEN": "sesame", "PATH": os.environ["PATH"]}
        options: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        arguments = {"worker": ["--broker", "http://127.0.0.1:1"], "broker": ["--listen", "127.0.0.1:0"], "up": []}
        log = folder / "log"
        with log.open("wb") as stderr:
            service = subprocess.Popen(
                [program, command, *arguments[command]], env=environment, stdout=stderr, stderr=stderr, **options
            )
        try:
            wait_until(lambda: log.stat().st_size > 0, "the service says something")
            for file in ("environ", "mem"):
                read = ["head", "-c", "1", f"/proc/{service.pid}/{file}"]
                said = subprocess.run(read, capture_output=True, text=True, **options)
                assert "Permission denied" in said.stderr, (file, said)
        finally:
            service.terminate()
            service.wait(60)
