"""A JupyterHub with its proxy, a broker as its service, a worker, and people who sign in."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import websocket

from end_to_end.place import Place
from end_to_end.ports import free_ports
from end_to_end.service import BINARY
from end_to_end.waiting import wait_until

BIN = Path(sys.executable).parent
PROXY = BIN.parent / "hub/node_modules/configurable-http-proxy/bin/configurable-http-proxy"
SECRETS = {name: f"{name}-{uuid.uuid4().hex}" for name in ("baton", "other", "tests")}
REMEMBERED_SECONDS = 1

SETTINGS = """
c.JupyterHub.bind_url = "http://127.0.0.1:{hub}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{api}"
c.JupyterHub.db_url = "sqlite:///{folder}/jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie_secret"
c.JupyterHub.pid_file = "{folder}/hub.pid"
c.ConfigurableHTTPProxy.command = ["{node}", "{proxy}"]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_api}"
c.ConfigurableHTTPProxy.pid_file = "{folder}/proxy.pid"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {{"root"}}
c.JupyterHub.load_groups = {{
    name: {{"users": people}}
    for name, people in {{"ml101": ["ada", "eve"], "ml101-staff": ["tia"], "art": ["kim"]}}.items()
}}
c.JupyterHub.services = [
    {{"name": "baton", "url": "http://127.0.0.1:{broker}", "api_token": "{baton}", "oauth_no_confirm": True}},
    {{"name": "other", "url": "http://127.0.0.1:1", "api_token": "{other}", "oauth_no_confirm": True}},
    {{"name": "tests", "api_token": "{tests}"}},
]
c.JupyterHub.load_roles = [
    {{"name": "user", "scopes": ["self", "access:services!service=baton", "access:services!service=other"]}},
    {{"name": "tests", "scopes": ["admin:users", "admin:servers", "tokens", "access:servers"], "services": ["tests"]}},
]
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = "{home}"
c.Spawner.cmd = ["{single_user}"]
c.Spawner.args = ["--allow-root"]
c.Spawner.start_timeout = c.Spawner.http_timeout = 120
c.Spawner.environment = {environment}
"""


class Hub:
    """Configured as the operator's guide says."""

    def __init__(self, place: Place, more_settings: str = "") -> None:
        self.place = place
        self.more_settings = more_settings
        self.folder = place.folder / "hub"
        self.folder.mkdir()
        self.ports = dict(zip(("hub", "api", "proxy_api", "broker"), free_ports(4), strict=True))
        self.url = f"http://127.0.0.1:{self.ports['hub']}"
        self.pages = f"{self.url}/services/baton/"
        self.broker_url = f"http://127.0.0.1:{self.ports['broker']}"
        self.broker_token = uuid.uuid4().hex
        self._programs: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._start_broker()
        # Without JupyterLab, which starts slowly and is not used.
        environment = self.place.environment | {
            "BATON_BROKER_ADDRESS": self.pages,
            "JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp",
        }
        # The server gets its own home from the Hub.
        environment.pop("HOME")
        settings = SETTINGS.format(
            **self.ports,
            **SECRETS,
            folder=self.folder,
            home=self.place.folder / "home",
            node=BIN / "node",
            proxy=PROXY,
            single_user=BIN / "jupyterhub-singleuser",
            environment=environment,
        )
        more = self.more_settings.replace("BROKER", self.broker_url)
        (self.folder / "jupyterhub_config.py").write_text(settings + more)
        self.hub = self._run("hub", [sys.executable, "-m", "jupyterhub", "-f", "jupyterhub_config.py"])
        wait_until(lambda: self._answers(f"{self.url}/hub/api/"), "the Hub is there")

    def _start_broker(self) -> None:
        (self.folder / "token").write_text(SECRETS["baton"])
        broker = ["broker", "--listen", self.broker_url.removeprefix("http://"), "--state-folder", self.folder / "data"]
        broker += ["--hub-api-url", f"http://127.0.0.1:{self.ports['api']}/hub/api"]
        broker += ["--hub-token-file", self.folder / "token", "--hub-remembered", f"{REMEMBERED_SECONDS}s"]
        self._run("broker", [BINARY, *broker], BATON_TOKEN=self.broker_token)
        wait_until(lambda: self._answers(f"{self.broker_url}/health/ready"), "the broker is ready")
        worker = [BINARY, "worker", "--broker", self.broker_url, "--name", "gpu-1"]
        self._run("worker", worker, BATON_TOKEN=self.broker_token)

    def _run(self, name: str, command: list[Any], **environment: str) -> subprocess.Popen[bytes]:
        path = f"{BIN}:{self.place.environment['PATH']}"
        with (self.folder / f"{name}.log").open("ab") as log:
            program = subprocess.Popen(
                command,
                env=self.place.environment | {"PATH": path} | environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._programs.append(program)
        return program

    def _answers(self, url: str) -> bool:
        try:
            return httpx.get(url, timeout=5).is_success
        except httpx.TransportError:
            return False

    # ---- the Hub for people

    def api(self, method: str, path: str, **body: Any) -> Any:
        """A request with the rights of the tests' own service."""
        headers = {"Authorization": f"token {SECRETS['tests']}"}
        answer = httpx.request(method, f"{self.url}/hub/api{path}", headers=headers, json=body or None, timeout=120)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def new_token(self, person: str, *scopes: str, **terms: Any) -> dict[str, Any]:
        token: dict[str, Any] = self.api("POST", f"/users/{person}/tokens", scopes=list(scopes), **terms)
        return token

    @contextmanager
    def signed_in(self, person: str) -> Iterator[httpx.Client]:
        """A browser in which this person is signed in."""
        accept = {"Accept": "text/html"}
        with httpx.Client(base_url=self.url, follow_redirects=True, timeout=120, headers=accept) as client:
            client.get("/hub/login")
            form = {"username": person, "password": "sesame", "_xsrf": client.cookies.get("_xsrf", path="/hub/")}
            answer = client.post("/hub/login?next=%2Fhub%2Ftoken", data=form)
            assert answer.is_success, answer.text
            assert answer.url.path == "/hub/token"
            yield client

    def code_for(self, client: httpx.Client, service: str, state: str = "s") -> str:
        """The code with which the Hub sends a person who signs in at a service back to it."""
        asked = {"client_id": f"service-{service}", "response_type": "code", "state": state}
        asked["redirect_uri"] = f"/services/{service}/oauth_callback"
        answer = client.get("/hub/api/oauth2/authorize", params=asked, follow_redirects=False)
        assert answer.status_code == 302, answer.text
        return httpx.URL(answer.headers["location"]).params["code"]

    def token_of_service(self, client: httpx.Client, service: str) -> str:
        """The token that another service gets for a person who signs in there."""
        form = {
            "grant_type": "authorization_code",
            "client_id": f"service-{service}",
            "client_secret": SECRETS[service],
            "code": self.code_for(client, service),
            "redirect_uri": f"/services/{service}/oauth_callback",
        }
        answer = httpx.post(f"{self.url}/hub/api/oauth2/token", data=form, timeout=120)
        assert answer.is_success, answer.text
        return str(answer.json()["access_token"])

    def notebook(self, person: str) -> Notebook:
        """A kernel "Python (shared GPU)" in this person's notebook server, as JupyterLab starts it."""
        self.api("POST", f"/users/{person}/server")
        server = f"{self.url}/user/{person}"
        wait_until(lambda: self._answers(f"{server}/api"), f"the server of {person} is there")
        headers = {"Authorization": f"token {SECRETS['tests']}"}
        answer = httpx.post(f"{server}/api/kernels", headers=headers, json={"name": "baton"}, timeout=120)
        assert answer.is_success, answer.text
        address = f"{server}/api/kernels/{answer.json()['id']}/channels".replace("http", "ws", 1)
        lines = [f"{name}: {value}" for name, value in headers.items()]
        return Notebook(websocket.create_connection(address, header=lines, suppress_origin=True, timeout=120))

    def close(self) -> list[str]:
        for process in (*self._programs, *self.place.processes()):
            end(process)
        for program in self._programs:
            program.wait(timeout=60)
        return self.place.close()


class Notebook:
    """One kernel over the WebSocket of a notebook server."""

    def __init__(self, channels: websocket.WebSocket) -> None:
        self._channels = channels

    def run(self, code: str) -> str:
        """The output of a cell; an error fails the test."""
        message = uuid.uuid4().hex
        header = {
            "msg_id": message,
            "msg_type": "execute_request",
            "username": "",
            "session": "tests",
            "version": "5.3",
        }
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": False}
        request = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "content": content}
        self._channels.send(json.dumps(request | {"buffers": []}))
        printed: list[str] = []
        while True:
            answer = json.loads(self._channels.recv())
            if answer["parent_header"].get("msg_id") != message:
                continue
            kind, content = answer["msg_type"], answer["content"]
            if kind == "stream" and content["name"] == "stdout":
                printed.append(content["text"])
            assert kind != "error", "\n".join(content["traceback"])
            if kind == "status" and content["execution_state"] == "idle":
                return "".join(printed)

    def close(self) -> None:
        self._channels.close()


@contextmanager
def jupyter_hub(more_settings: str = "") -> Iterator[Hub]:
    """`more_settings`: appended to `jupyterhub_config.py`; BROKER stands for the broker's address."""
    hub = Hub(Place.create(), more_settings)
    try:
        hub.start()
        yield hub
    finally:
        left = hub.close()
    assert not left, f"Processes left behind: {left}"


def end(process: subprocess.Popen[bytes] | psutil.Process) -> None:
    try:
        process.terminate()
    except psutil.NoSuchProcess:
        return
