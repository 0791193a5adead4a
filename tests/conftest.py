"""Fixtures: one imaginary user for the whole run, kernels of that user, and services for tests that break them."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from end_to_end import Gate, Kernel, Place, Service
from end_to_end.leftovers import Leftovers
from end_to_end.network import Network
from end_to_end.programs import Programs

ROOT = Path(__file__).parent.parent


def pytest_configure() -> None:
    """The background of a shell script ignores SIGINT, and programs that tests interrupt would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    for item in items:
        if mark := item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(f"NOT TESTED: only root can {mark.args[0]}"))


@pytest.fixture(scope="session", autouse=True)
def leftovers() -> Iterator[Leftovers]:
    """The last check of a run: no process that it started remains."""
    leftovers = Leftovers()
    yield leftovers
    left = leftovers.close()
    assert not left, f"Processes left behind: {left}"


@pytest.fixture(scope="session")
def place(leftovers: Leftovers) -> Iterator[Place]:
    """The home of a user who has configured nothing: the first `%%gpu` cell starts a service."""
    place = Place.create()
    yield place
    left = place.close()
    assert not left, f"Processes left behind: {left}"


@pytest.fixture(scope="session", autouse=True)
def _private_environment(place: Place) -> Iterator[None]:
    """Libraries in this process (jupyter_client, nbclient) also find their folders through the environment."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(place.environment)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def new_kernel(place: Place) -> Iterator[Callable[..., Kernel]]:
    """Starts kernels that end with the test."""
    started: list[Kernel] = []

    def start(name: str = "baton", at: Place = place, folder: Path | None = None, **environment: str) -> Kernel:
        started.append(Kernel.start(at, name, folder, **environment))
        return started[-1]

    yield start
    for kernel in started:
        kernel.shutdown()


@pytest.fixture
def gate(place: Place) -> Iterator[Gate]:
    """Opens at the end, because cells in the background outlive their kernels.

    Sandboxed cells of a `service` see it if their worker has `BATON_WORKER_READABLE=str(place.signs)`.
    """
    gate = Gate(Path(tempfile.mkdtemp(dir=place.signs)))
    yield gate
    gate.open_all()


@pytest.fixture
def programs(place: Place, tmp_path: Path) -> Iterator[Programs]:
    programs = Programs(place, tmp_path)
    yield programs
    programs.close()


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


class SharedKernel:
    """One kernel for many tests: emptied before each test, replaced after a failure."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._kernel: Kernel | None = None

    def get(self) -> Kernel:
        if self._kernel is None:
            self._kernel = Kernel.start(self._place)
        self._kernel.empty()
        return self._kernel

    def drop(self) -> None:
        if self._kernel is not None:
            self._kernel.shutdown()
            self._kernel = None


@pytest.fixture(scope="session")
def _shared_kernel(place: Place) -> Iterator[SharedKernel]:
    shared = SharedKernel(place)
    yield shared
    shared.drop()


@pytest.fixture
def has_failed(request: pytest.FixtureRequest) -> Callable[[], bool]:
    """Whether the test failed, once it is over."""

    def ask() -> bool:
        report = getattr(request.node, "call_report", None)
        return report is None or report.failed

    return ask


@pytest.fixture
def kernel(_shared_kernel: SharedKernel, has_failed: Callable[[], bool]) -> Iterator[Kernel]:
    """A kernel without variables. Its session may be warm from another test."""
    yield _shared_kernel.get()
    if has_failed():
        _shared_kernel.drop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.call_report = report  # type: ignore[attr-defined]
    return report


@pytest.fixture
def service() -> Iterator[Service]:
    """A broker and workers for this test only, as separate processes that it may kill."""
    service = Service.create()
    yield service
    left = service.close()
    assert not left, f"Processes left behind: {left}"


@pytest.fixture
def artefacts() -> Path:
    """The folder for files that a test leaves for a person to look at."""
    folder = ROOT / "tests/artefacts"
    folder.mkdir(exist_ok=True)
    return folder
