"""Workers that are cut off for longer than the broker waits for them: no cell begins twice.

A cell counts its runs in a file outside the notebook's folder, where nothing is undone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from end_to_end import Kernel, Service, wait_until
from end_to_end.network import Network, Relay

ROUNDS = 4

NOTEBOOK = """
import os

class Probe:
    '''Its rebuilding shows that a session applies the state, and which one.'''
    def __init__(self, file):
        self.file = file
    def __reduce__(self):
        return land, (self.file,)

def land(file):
    with open(file, 'a') as lands:
        lands.write(f'{os.getpid()} {os.environ["BATON_SESSION"]}\\n')
    return Probe(file)

values = []
"""


class Class:
    """One notebook, one broker, and two workers, each behind a separate relay."""

    def __init__(self, service: Service, new_kernel: Callable[..., Kernel], network: Network, **settings: str) -> None:
        self.service = service
        self.relays: dict[str, Relay] = {}
        service.start_broker(**settings)
        for number in range(2):
            relay = network.relay(f"unix:{service.socket}", f"unix:{service.place.folder}/run/n{number}.sock")
            name = service.start_worker(slots=1, BATON_BROKER_ADDRESS=relay.address)
            self.relays[name] = relay
        self.kernel = service.kernel(new_kernel)
        self.kernel.run(NOTEBOOK).ok()
        self.cells = 0
        self.ended: list[int] = []
        """The cells whose end the notebook has received."""

    def file(self, what: str) -> Path:
        return self.service.place.work / f"{what}-{self.cells}"

    def prepare(self) -> str:
        """The next cell: counts its run, and waits while a file `hold` exists."""
        self.cells += 1
        self.kernel.run(f"probe = Probe({str(self.file('landed'))!r})").ok()
        return (
            "%%gpu\nimport os, time\nprobe\n"
            f"with open({str(self.file('runs'))!r}, 'a') as runs:\n    runs.write('x')\ndel runs\n"
            f"while os.path.exists({str(self.file('hold'))!r}):\n    time.sleep(0.01)\n"
            f"values.append({self.cells})"
        )

    @property
    def runs(self) -> str:
        return read(self.file("runs"))

    def worker_of(self, session: int) -> Relay:
        """The relay of the worker that has this session."""
        lines = [process.cmdline() for process in psutil.Process(session).parents()]
        return next(relay for name, relay in self.relays.items() if any(name in line for line in lines))

    def landed(self) -> Relay:
        """The relay of the worker whose session applies the cell's state."""
        wait_until(lambda: read(self.file("landed")).endswith("\n"), "a session applies the state")
        return self.worker_of(self.service.place.session_pid(read(self.file("landed")).splitlines()[0]))

    def heal(self) -> None:
        for relay in self.relays.values():
            relay.mend()
        names = list(self.relays)
        wait_until(lambda: all(connected(self.service, name) for name in names), "both workers are back")


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def connected(service: Service, name: str) -> bool:
    answer = service.answers("/v1/workers")
    workers = json.loads(answer)["items"] if answer else []
    return any(worker["name"] == name and worker["state"] != "disconnected" for worker in workers)


@pytest.fixture
def classroom(
    fault: Callable[[Class], None], service: Service, new_kernel: Callable[..., Kernel], network: Network
) -> Class:
    # After a reset, the connection returns in time, however slow the machine is.
    settings = {"BATON_BROKER_WORKER_GRACE": "60s"} if fault is reset_at_its_start else {}
    return Class(service, new_kernel, network, **settings)


def cut_off_when_assigned(classroom: Class) -> None:
    code = classroom.prepare()
    for relay in classroom.relays.values():
        relay.swallow("back")
    cell = classroom.kernel.begin(code)
    relays = classroom.relays.values()
    wait_until(lambda: any(relay.has_swallowed("back") for relay in relays), "the cell is on its way to a worker")
    for relay in relays:
        relay.cut()
    classroom.heal()
    cell.finish().ok()
    classroom.ended.append(classroom.cells)
    assert classroom.runs == "x"


def cut_off_before_the_start_is_stored(classroom: Class) -> None:
    # A new session would first ask the notebook about its folder, and now nothing would get through.
    classroom.kernel.gpu("pass").ok()
    code = classroom.prepare()
    for relay in classroom.relays.values():
        relay.swallow("there")
    cell = classroom.kernel.begin(code)
    first = classroom.landed()
    first.cut()
    for relay in classroom.relays.values():
        if relay is not first:
            relay.mend()
    cell.finish().ok()
    classroom.ended.append(classroom.cells)
    assert classroom.runs == "x"
    classroom.heal()


def cut_off_while_it_runs(classroom: Class) -> None:
    code = classroom.prepare()
    classroom.file("hold").touch()
    cell = classroom.kernel.begin(code)
    first = classroom.landed()
    wait_until(lambda: classroom.runs, "the cell runs")
    first.cut()
    result = cell.finish()
    assert "was lost while this cell ran" in result.plain_traceback
    classroom.file("hold").unlink()
    classroom.heal()
    assert classroom.runs == "x"


def reset_at_its_start(classroom: Class) -> None:
    """Whatever the reset hits: the request to start, the answer, or the cell itself. The connection returns in time."""
    code = classroom.prepare()
    cell = classroom.kernel.begin(code)
    classroom.landed().reset()
    cell.finish().ok()
    classroom.ended.append(classroom.cells)
    assert classroom.runs == "x"


@pytest.mark.parametrize(
    "fault",
    [
        cut_off_when_assigned,
        cut_off_before_the_start_is_stored,
        cut_off_while_it_runs,
        reset_at_its_start,
    ],
    ids=lambda fault: fault.__name__,
)
def test_no_cell_begins_twice(classroom: Class, fault: Callable[[Class], None]) -> None:
    for _ in range(ROUNDS):
        fault(classroom)
    folder = classroom.service.place.work
    assert {path.read_text() for path in folder.glob("runs-*")} == {"x"}
    assert classroom.kernel.evaluate("values") == classroom.ended
