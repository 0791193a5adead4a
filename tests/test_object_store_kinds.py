"""Features of single kinds of object stores: encryption, identities, and how a grant is signed."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import msgpack
import pytest
import requests
from end_to_end import Kernel, Place, Service
from end_to_end.object_store import KINDS, Azurite, FakeGcs, ObjectStore
from end_to_end.ports import free_port
from end_to_end.service import TOKEN, run_binary
from end_to_end.tls import Tls

MAKE = "import numpy as np\nx = np.random.default_rng(7).integers(0, 256, 8 << 20, dtype='uint8')"
SUM = "int(x.sum(dtype='int64'))"


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Tls(tmp_path)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, tls: Tls) -> Iterator[ObjectStore]:
    """With a certificate of an authority that only the test knows."""
    store: ObjectStore = request.param(tmp_path / "store", tls)
    yield store
    store.close()


@pytest.fixture
def service(tls: Tls) -> Iterator[Service]:
    """The broker has a certificate of the same authority."""
    service = Service(Place.create(), f"https://127.0.0.1:{free_port()}", tls)
    yield service
    left = service.close()
    assert not left, f"Processes left behind: {left}"


def runs(service: Service, new_kernel: Callable[..., Kernel]) -> Kernel:
    """A notebook whose cell used the store."""
    kernel = service.kernel(new_kernel, BATON_TRANSPORT="http")
    kernel.run(MAKE).ok()
    cell = kernel.gpu(f"y = x[::-1].copy()\n{SUM}").ok()
    assert cell.value == str(kernel.evaluate(SUM))
    assert kernel.evaluate("bool((y == x[::-1]).all())") is True
    assert not [path for path in service.data.rglob("chunks/**/*") if path.is_file()]
    return kernel


def test_a_store_with_an_authority_of_its_own(
    service: Service, store: ObjectStore, tls: Tls, new_kernel: Callable[..., Kernel]
) -> None:
    service.start_broker(**store.settings)
    service.start_worker()
    kernel = runs(service, new_kernel)
    said = run_binary(service.place, "doctor", **store.settings).stdout
    assert f"wrong  The broker cannot use {store.address}: There is no safe connection to the object store" in said
    assert "an authority that this machine does not trust" in said
    assert "fix: set `ca_file` (BATON_CA_FILE)" in said
    trusting = store.settings | {"BATON_CA_FILE": str(tls.ca_file)}
    assert f"ok     The broker can use {store.address}" in run_binary(service.place, "doctor", **trusting).stdout

    # From now on, it presents a certificate that none of them trusts, so retries are useless.
    kernel.run("x = np.roll(x, 1)").ok()
    total = kernel.evaluate(SUM)
    store.close()
    tls.show_foreign()
    store.start()
    cell = kernel.gpu("x[:] = 0")
    assert cell.error is not None
    said = cell.plain_traceback
    assert "There is no safe connection to the object store" in said
    assert "Your variables are as they were before the cell" in said
    assert "hint: set `ca_file` (BATON_CA_FILE) on this machine" in said, said
    assert kernel.evaluate(SUM) == total


@pytest.fixture
def machine(store: Azurite) -> Iterator[tuple[str, list[str]]]:
    """Where a machine in Azure gets tokens of its identity, and a list of the requests."""
    asked = []

    class Machine(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.headers['metadata']} {self.path}")
            body = json.dumps({"access_token": store.token, "expires_on": "4100000000"}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *values: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Machine)
    Thread(target=server.serve_forever, name="machine", daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/token", asked
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("store", [Azurite], indirect=True)
def test_azure_with_the_identity_of_its_machine_instead_of_a_key(
    service: Service, store: Azurite, machine: tuple[str, list[str]], new_kernel: Callable[..., Kernel]
) -> None:
    """The broker requests a key with which it signs for the identity, and keeps it."""
    address, asked = machine
    service.start_broker(**(store.settings | {"AZURE_STORAGE_ACCOUNT_KEY": "", "AZURE_MSI_ENDPOINT": address}))
    service.start_worker()
    runs(service, new_kernel)
    [request] = asked
    assert request.startswith("true /token?")
    assert "resource=https%3A%2F%2Fstorage.azure.com" in request
    log = service.log("broker")
    assert f"Chunks are in {store.address}" in log
    assert not [secret for secret in (store.token, "sig=") if secret in log]
    [grant] = grants(service, "upload", [(bytes(32), 5)])
    query = parse_qs(urlsplit(grant["url"]).query)
    assert query["skoid"] == ["23657296-5cd5-45b0-a809-d972a7f4dfe1"]
    assert (query["sp"], query["spr"], query["sr"]) == (["c"], ["https"], ["b"])
    # A key for signing was requested once.
    assert (store.folder / "log").read_text().count("comp=userdelegationkey") == 1


@pytest.mark.parametrize("store", [FakeGcs], indirect=True)
def test_google_is_asked_as_by_its_own_library(service: Service, store: FakeGcs) -> None:
    """The server does not check signatures, so they are compared, byte by byte."""
    from google.cloud.storage._signing import generate_signed_url_v4
    from google.oauth2.service_account import Credentials

    variables = store.settings
    # Signed for Google's host, whatever the server is.
    service.start_broker(**variables)
    credentials = Credentials.from_service_account_info(store.account)
    chunk = bytes(range(32))
    [upload] = grants(service, "upload", [(chunk, 5)])
    headers = dict(upload["headers"])
    assert headers == {"x-goog-content-length-range": "5,5", "x-goog-if-generation-match": "0"}
    put = requests.put(upload["url"], data=b"five!", headers=headers, verify=str(service.access["BATON_CA_FILE"]))
    assert put.ok
    assert ask(service, "/v1/chunks/uploaded", [chunk]) == []
    [download] = grants(service, "download", [chunk])
    for grant, method, signed in ((upload, "PUT", headers), (download, "GET", {})):
        parts = urlsplit(grant["url"])
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        assert query["X-Goog-Expires"] == "300"
        expected = generate_signed_url_v4(
            credentials,
            resource=parts.path,
            expiration=datetime.timedelta(seconds=300),
            api_access_endpoint="https://storage.googleapis.com",
            method=method,
            headers=signed,
            _request_timestamp=query["X-Goog-Date"],
        )
        assert urlsplit(expected).path == parts.path
        assert {name: values[0] for name, values in parse_qs(urlsplit(expected).query).items()} == query


def grants(service: Service, what: str, names: list[object]) -> list[dict[str, object]]:
    return ask(service, f"/v1/chunks/grants/{what}", names)["store"]["grants"]


def ask(service: Service, path: str, names: list[object]) -> object:
    """A request of Ada's notebook."""
    answer = requests.post(
        f"{service.address}{path}?owner=ada",
        data=msgpack.packb(names),
        headers={"authorization": f"Bearer {TOKEN}"},
        verify=service.access["BATON_CA_FILE"],
        timeout=60,
    )
    assert answer.ok, answer.text
    return msgpack.unpackb(answer.content)
