"""A broker with TLS: cells run over it, and everyone who meets a wrong certificate learns what is wrong."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from end_to_end import Kernel, Place, Service, wait_until
from end_to_end.ports import free_port
from end_to_end.service import run_binary
from end_to_end.tls import HERE, Tls


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Tls(tmp_path)


def served(service: Service) -> Iterator[Service]:
    service.start_broker()
    yield service
    left = service.close()
    assert not left, f"Processes left behind: {left}"


@pytest.fixture
def encrypted(tls: Tls, port: int) -> Iterator[Service]:
    """A broker with TLS."""
    yield from served(Service(Place.create(), f"https://{HERE}:{port}", tls))


@pytest.fixture
def plain(port: int) -> Iterator[Service]:
    """A broker without TLS."""
    yield from served(Service(Place.create(), f"http://{HERE}:{port}"))


def shown(service: Service) -> str:
    """The certificate that a new connection gets."""
    host, port = service.address.removeprefix("https://").split(":")
    return ssl.get_server_certificate((host, int(port)))


@pytest.mark.parametrize("lane", ["auto", "http"])
def test_a_cell_runs_over_tls(encrypted: Service, new_kernel: Callable[..., Kernel], lane: str) -> None:
    encrypted.start_worker(BATON_TRANSPORT=lane)
    kernel = encrypted.kernel(new_kernel, BATON_TRANSPORT=lane)
    kernel.run("import numpy as np\nvalues = np.arange(500_000)").ok()
    result = kernel.gpu("values *= 2\nprint('from the worker')\nint(values.sum())").ok()
    assert result.outputs == [("stdout", "from the worker\n"), ("execute_result", "249999500000")]
    assert kernel.evaluate("int(values[-1])") == 999998


def test_commands_speak_over_tls(encrypted: Service) -> None:
    for command in ("status", "jobs", "workers", "usage"):
        said = run_binary(encrypted.place, command, **encrypted.access)
        assert said.returncode == 0, said.stderr
    said = run_binary(encrypted.place, "doctor", **encrypted.access)
    assert f"The broker at {encrypted.address} answers, version" in said.stdout


PROBLEMS: dict[str, tuple[Callable[[Tls], None], str, str]] = {
    "expired": (Tls.show_expired, "its certificate has expired", "also check this machine's clock"),
    "foreign": (
        Tls.show_foreign,
        "its certificate is from an authority that this machine does not trust",
        "set `ca_file` (BATON_CA_FILE) to the authority's certificate",
    ),
    "wrong host": (
        lambda tls: tls.show("broker.example.edu"),
        "its certificate is for broker.example.edu",
        "use that name in `broker_address` (BATON_BROKER_ADDRESS)",
    ),
}


def check_told(service: Service, new_kernel: Callable[..., Kernel], what: str, hint: str) -> None:
    """The notebook, commands, the doctor and the worker's log say what is wrong and what to do."""
    kernel = service.kernel(new_kernel)
    kernel.run("values = [1]").ok()
    result = kernel.gpu("values.append(2)")
    assert result.error is not None
    status = run_binary(service.place, "status", **service.access)
    doctor = run_binary(service.place, "doctor", **service.access)
    assert (status.returncode, doctor.returncode) == (1, 1)
    worker = service.begin_worker()
    wait_until(lambda: what in service.log(worker), "the worker says it")
    for told in (result.plain_traceback, status.stderr, doctor.stdout, service.log(worker)):
        assert what in told, told
        assert hint in told, told
    assert kernel.run("values").ok().value == "[1]"


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_wrong_certificate_is_told(
    encrypted: Service, tls: Tls, new_kernel: Callable[..., Kernel], problem: str
) -> None:
    show, what, hint = PROBLEMS[problem]
    before = shown(encrypted)
    show(tls)
    wait_until(lambda: shown(encrypted) != before, "new connections use the new certificate")
    check_told(encrypted, new_kernel, f"no safe connection to the broker at {encrypted.address}: {what}", hint)


def test_a_plain_address_of_an_encrypted_broker_is_told(encrypted: Service, new_kernel: Callable[..., Kernel]) -> None:
    encrypted.address = encrypted.address.replace("https", "http")
    check_told(encrypted, new_kernel, "This broker speaks HTTPS only", "address")


def test_an_encrypted_address_of_a_plain_broker_is_told(plain: Service, new_kernel: Callable[..., Kernel]) -> None:
    plain.address = plain.address.replace("http", "https")
    check_told(plain, new_kernel, "it does not use encryption", "begin `broker_address`")


def test_a_renewed_certificate_is_used_and_ends_no_cell(
    encrypted: Service, tls: Tls, new_kernel: Callable[..., Kernel]
) -> None:
    encrypted.start_worker()
    kernel = encrypted.kernel(new_kernel)
    cell = kernel.begin("%%gpu\ninput()")
    cell.wait_for_question()
    before = shown(encrypted)
    tls.show(HERE)
    wait_until(lambda: shown(encrypted) != before, "new connections use the new certificate")
    kernel.client.input("go on")
    assert cell.finish().ok().value == "'go on'"
    # Neither end had to reconnect.
    assert "connection to the broker was lost" not in encrypted.log("worker-0")


class Hub(BaseHTTPRequestHandler):
    """The only answer of a JupyterHub that the broker needs, over TLS."""

    def do_GET(self) -> None:
        scopes = ["access:services!service=baton"]
        body = json.dumps({"kind": "user", "name": "ada", "admin": True, "scopes": scopes}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub(tls: Tls) -> Iterator[tuple[str, ssl.SSLContext]]:
    """Its address, and the TLS context with its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    server = ThreadingHTTPServer((HERE, 0), Hub)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://{HERE}:{server.server_port}", context
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_hub_is_asked_over_tls(service: Service, tls: Tls, hub: tuple[str, ssl.SSLContext]) -> None:
    address, context = hub
    asked = {"BATON_BROKER_HUB_API_URL": f"{address}/hub/api", "BATON_BROKER_HUB_TOKEN": "of-the-service"}
    service.start_broker(BATON_CA_FILE=str(tls.ca_file), BATON_TOKEN="the broker's", **asked)
    ask = partial(run_binary, service.place, "jobs", BATON_BROKER_ADDRESS=service.address, BATON_TOKEN="of-ada")
    tls.show_expired()
    context.load_cert_chain(tls.certificate, tls.key)
    refused = ask()
    assert refused.returncode == 1
    what = "There is no safe connection to the JupyterHub, so no one can be identified: its certificate has expired"
    assert what in refused.stderr
    assert what in service.log("broker")
    tls.show(HERE)
    context.load_cert_chain(tls.certificate, tls.key)
    assert ask().returncode == 0


def test_a_broker_that_others_reach_needs_a_certificate(place: Place, tls: Tls, tmp_path: Path) -> None:
    arguments = ["broker", "--listen", "0.0.0.0:0", "--state-folder", str(tmp_path)]
    said = run_binary(place, *arguments)
    assert said.returncode == 1
    assert "0.0.0.0:0 is reachable from other machines without encryption" in said.stderr
    assert "hint: set broker.tls_certificate and broker.tls_key" in said.stderr
    said = run_binary(place, *arguments, "--tls-certificate", str(tls.certificate))
    assert "broker.tls_certificate is set, but broker.tls_key is not" in said.stderr
