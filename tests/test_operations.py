"""The steps of the operator's guide, carried out: units, configurations, backup and restore."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from configparser import RawConfigParser
from pathlib import Path

import pytest
from end_to_end import Kernel, Place, Service
from end_to_end.guides import GUIDES, blocks
from end_to_end.kernel import Cell
from end_to_end.service import BINARY, run_binary
from end_to_end.tls import Tls
from end_to_end.waiting import wait_until

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs/guides/operators.md").read_text()
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))


def command_of_guide(beginning: str) -> str:
    """The line of a console block with this beginning."""
    (line,) = [line.strip() for line in GUIDE.splitlines() if line.strip().startswith(beginning)]
    return line


def run_shell(line: str, replacements: Mapping[str, str | Path]) -> None:
    for old, new in replacements.items():
        line = line.replace(old, str(new))
    said = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == 0, f"{line}\n{said.stderr}"


STARTED = {
    "baton-broker": "The broker listens on",
    "baton-chunks": "Serving chunks on",
    # The worker of this test finds no broker, and keeps looking for one.
    "baton-worker": "cannot be reached",
}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_its_service_with_its_configuration(path: Path, place: Place) -> None:
    unit = RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    # By default, systemd gives up after five starts within ten seconds.
    restarts_slowly = 5 * int(unit["Service"]["RestartSec"]) > 10
    assert restarts_slowly or unit["Unit"].get("StartLimitIntervalSec") == "0"
    program, *arguments = unit["Service"]["ExecStart"].split()
    assert program == "/opt/baton/bin/baton"
    name, configured = unit["Service"]["Environment"].split("=")
    assert name == "BATON_CONFIG"

    etc = place.folder / f"etc-{path.stem}"
    etc.mkdir()
    for file in ("hub-token", "token", "courses.toml"):
        (etc / file).write_text("")
    (etc / "hub-token").write_text("a secret of the Hub")
    (etc / "people.toml").touch(0o600)
    (etc / "tls").mkdir()
    tls = Tls(etc / "tls")
    tls.certificate.rename(etc / "tls/fullchain.pem")
    tls.key.rename(etc / "tls/privkey.pem")
    text = (ROOT / "deploy" / Path(configured).name).read_text()
    (etc / "var/lib/baton").mkdir(parents=True)
    (etc / "var/lib/baton/token").touch(0o600)
    (etc / "var/lib/baton/token").write_text("the broker's own")
    for old, new in {
        "/etc/baton": etc,
        "/var/": f"{etc}/var/",
        "/run/baton-worker": etc / "run",
        "/opt/course/bin/python": sys.executable,
        "0.0.0.0:8470": "127.0.0.1:0",
        "127.0.0.1:8471": "127.0.0.1:0",
        "broker.example.edu:8470": "127.0.0.1:1",
    }.items():
        text = text.replace(old, str(new))
    (etc / "config.toml").write_text(text)
    shown = run_binary(place, "config", "show", BATON_CONFIG=str(etc / "config.toml"))
    assert shown.returncode == 0, shown.stderr
    # The worker's user may have no home.
    assert path.stem != "baton-worker" or "/.cache/" not in shown.stdout

    log = etc / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [BINARY, *arguments],
            env=place.environment | {"BATON_CONFIG": str(etc / "config.toml"), "BATON_LOG": "info"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: STARTED[path.stem] in log.read_text() or process.poll() is not None, "it has started")
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0, log.read_text()
    made = {"baton-broker": "broker.db", "baton-chunks": "chunks"}
    if path.stem in made:
        assert (etc / "var/lib/baton" / made[path.stem]).exists()


@pytest.fixture(scope="module")
def systemd() -> None:
    """The program that checks units."""
    said = subprocess.run([ROOT / "scripts/install-system-packages", "systemd"], check=False)
    assert said.returncode == 0


@pytest.fixture(params=["", "dynamic-user.conf"], ids=["units", "with a dynamic user"])
def installed(request: pytest.FixtureRequest, systemd: None, tmp_path: Path) -> list[str]:
    """The units as an administrator installs them, possibly with a file that changes the worker's."""
    assert [path.stem for path in UNITS] == list(STARTED)
    for path in UNITS:
        (tmp_path / path.name).write_text(path.read_text().replace("/opt/baton/bin/baton", str(BINARY)))
    if request.param:
        line = command_of_guide(f"install -D -m 644 deploy/systemd/{request.param}")
        run_shell(line, {"/etc/systemd/system": tmp_path})
        assert [path.name for path in (tmp_path / "baton-worker.service.d").iterdir()] == [request.param]
    return [str(tmp_path / path.name) for path in UNITS]


def test_systemd_takes_the_units(installed: list[str]) -> None:
    said = subprocess.run(["systemd-analyze", "verify", *installed], capture_output=True, text=True, check=False)
    ours = [line for line in said.stderr.splitlines() if "baton" in line]
    assert (said.returncode, ours) == (0, []), said.stderr


def test_a_unit_may_do_little(installed: list[str]) -> None:
    for path in installed:
        command = ["systemd-analyze", "security", "--offline=true", "--threshold=40", "--no-pager", path]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stdout + said.stderr


def test_a_worker_has_the_time_to_stop_that_its_settings_say() -> None:
    unit, settings = (ROOT / "deploy" / name for name in ("systemd/baton-worker.service", "worker.toml"))
    (minutes,) = re.findall(r"^TimeoutStopSec=(\d+)min$", unit.read_text(), re.MULTILINE)
    (hours,) = re.findall(r'^stop_grace = "(\d+)h"$', settings.read_text(), re.MULTILINE)
    patience_minutes = 10
    assert int(minutes) > 60 * int(hours) + patience_minutes


def test_the_first_certificate_reaches_the_broker(tmp_path: Path) -> None:
    """Many versions of certbot run the hook only for a renewal."""
    certificate = tmp_path / "live/broker.example.edu"
    hook = tmp_path / "renewal-hooks/deploy/baton"
    for folder in (certificate, hook.parent):
        folder.mkdir(parents=True)
    for name in ("fullchain.pem", "privkey.pem"):
        (certificate / name).write_text(name)
    [text] = blocks(GUIDES / "operators.md", "sh")
    hook.write_text(text.replace("/etc/baton", str(tmp_path / "baton")).replace("-g baton ", ""))
    hook.chmod(0o755)
    run_shell(command_of_guide("RENEWED_LINEAGE="), {"/etc/letsencrypt": tmp_path})
    copied = {path.name: path.read_text() for path in (tmp_path / "baton/tls").iterdir()}
    assert copied == {"fullchain.pem": "fullchain.pem", "privkey.pem": "privkey.pem"}


class Listener:
    """Receives what systemd would."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.settimeout(120)

    def wait_for(self, line: str) -> None:
        while line not in self._socket.recv(4096).decode().splitlines():
            pass


def test_systemd_hears_what_a_service_does(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    broker, worker = Listener(service.place.folder / "run"), Listener(service.place.folder / "home")
    service.start_broker(NOTIFY_SOCKET=str(broker.path))
    broker.wait_for("READY=1")
    name = service.start_worker(NOTIFY_SOCKET=str(worker.path))
    worker.wait_for("READY=1")
    worker.wait_for("STATUS=Connected to the broker")
    kernel = service.kernel(new_kernel)
    cell = kernel.begin("%%gpu\ninput()")
    worker.wait_for("STATUS=Connected to the broker; 1 cell runs")
    cell.wait_for_question()
    service.process(name).terminate()
    worker.wait_for("STOPPING=1")
    worker.wait_for("STATUS=Leaving when its cells have ended; 1 cell runs")
    kernel.client.input("go on")
    cell.finish().ok()
    assert service.wait(name) == 0
    service.end("broker", signal.SIGTERM)
    broker.wait_for("STOPPING=1")


def test_the_hubs_lines_are_python_and_name_what_the_guide_names() -> None:
    text = (ROOT / "deploy/jupyterhub_config.py").read_text()
    compile(text, "jupyterhub_config.py", "exec")
    for name in ("/etc/baton/hub-token", "access:services!service=baton", "ml101-staff", "BATON_BROKER_ADDRESS"):
        assert name in text
        assert name in GUIDE or name == "BATON_BROKER_ADDRESS"


def test_settings_and_commands_of_the_guide_exist() -> None:
    reference = (ROOT / "docs/reference/configuration.md").read_text()
    keys = set(re.findall(r"`((?:broker|worker|up)\.[a-z_.]+)`", GUIDE)) - {"broker.db"}
    assert len(keys) > 8
    assert [key for key in sorted(keys) if f"### `{key}`" not in reference] == []
    commands = {line.split()[1] for line in GUIDE.splitlines() if line.strip().startswith("baton ")}
    known = subprocess.run([BINARY, "--help"], capture_output=True, text=True, check=True).stdout
    assert [command for command in sorted(commands) if not re.search(rf"^  {command}\b", known, re.MULTILINE)] == []


def test_a_restored_copy_goes_on(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    """Copied while one cell runs and one waits; another one is submitted later. Then the machine's disk is lost."""
    paths = {
        "/var/lib/baton": str(service.data),
        "/var/backups": str(service.place.folder),
        "python3": sys.executable,
        "-o baton ": "",
    }
    service.start_broker()
    service.start_worker(slots=1)
    running, later = (service.kernel(new_kernel) for _ in range(2))
    far = service.kernel(new_kernel, BATON_TRANSPORT="http")
    kernels = (running, later, far)
    for kernel in kernels:
        kernel.run("values = [1]").ok()
    far.run("import numpy as np\nlarge = np.random.default_rng(1).random(200_000)").ok()
    hold = "import os, time\nprint('runs', flush=True)\nwhile not os.path.exists('go'):\n    time.sleep(0.02)"
    cell = running.begin(f"%%gpu\n{hold}\nvalues.append(2)\nprint('ends')")
    cell.wait_for_text("runs")
    without_bytes = begin_waiting(far)
    run_shell(command_of_guide("(umask 077; python3 -c"), paths)
    unknown = begin_waiting(later)

    service.kill("broker")
    run_shell(command_of_guide("rm -f"), paths)
    run_shell(command_of_guide("install -m 600 -o baton /var/backups"), paths)
    shutil.rmtree(service.data / "chunks")
    service.start_broker()
    (service.place.work / "go").touch()
    assert cell.finish().ok().stdout.splitlines() == ["runs", "ends"]
    unknown.finish().ok()
    assert "Your variables are as they were before the cell" in without_bytes.finish().plain_traceback
    assert far.evaluate("values") == [1]
    far.gpu("values.append(2)\nlarge.sum()").ok()
    for kernel in kernels:
        assert kernel.evaluate("values") == [1, 2]


def begin_waiting(kernel: Kernel) -> Cell:
    cell = kernel.begin("%%gpu\nvalues.append(2)\n'large' in globals() and large.sum()")
    # Before that, a line may say that its variables are being sent.
    cell.wait_for(lambda result: any("in line" in line for line in result.notices), "the cell waits")
    return cell
