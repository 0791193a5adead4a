"""A session has no address: no other process can connect to its kernel, and no file has its key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from end_to_end import Kernel, Service
from end_to_end.restricted import WITHOUT_USER_NAMESPACES

pytestmark = pytest.mark.every_user

IN_FORKED_PROCESSES = """
import multiprocessing, sys
def say(number):
    sys.stdout.write(f"of {number}\\n")
with multiprocessing.get_context("fork").Pool(2) as pool:
    pool.map(say, range(3))
    pool.close()
    pool.join()
"""
LOOK = """
from ipykernel.connect import get_connection_file
kernel = get_ipython().kernel
ports = kernel.parent.shell_port, kernel.parent.hb_port
key = kernel.session.key.decode()
try:
    get_connection_file()
except OSError as error:
    said = str(error)
del kernel
"""


@pytest.mark.parametrize("start", ["forked", "fresh"])
@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock", "none"])
def test_no_process_can_connect_to_a_session(
    service: Service, sandbox: str, start: str, new_kernel: Callable[..., Kernel]
) -> None:
    service.start_broker()
    service.start_worker(
        prefix=WITHOUT_USER_NAMESPACES if sandbox == "landlock" else [],
        BATON_WORKER_SANDBOX=sandbox,
        BATON_WORKER_WARM_STARTS=str(start == "forked").lower(),
    )
    kernel = service.kernel(new_kernel)
    printed = kernel.gpu(IN_FORKED_PROCESSES).ok().stdout
    assert sorted(printed.splitlines()) == ["of 0", "of 1", "of 2"]
    kernel.gpu(LOOK).ok()
    ports, key, said = kernel.evaluate("ports, key, said")
    assert ports == (0, 0)
    assert "this session has no connection file" in said
    session = psutil.Process(kernel.session_pid)
    opened = opened_by(session)
    assert not [line for line in listening(session) if Path(f"socket:[{line}]") in opened]
    (folder,) = service.place.find("baton-session-*")
    assert [path for path in folder.rglob("*") if path.name == "connection.json" or holds(path, key)] == []


def opened_by(process: psutil.Process) -> set[Path]:
    found = set()
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has just been closed
            found.add(link.readlink())
    return found


def listening(process: psutil.Process) -> set[str]:
    """The inodes of the sockets in the process's network that have an address for others."""
    folder = Path(f"/proc/{process.pid}/net")
    fields = [line.split() for kind in ("tcp", "tcp6") for line in (folder / kind).read_text().splitlines()[1:]]
    inodes = {line[9] for line in fields if line[3] == "0A"}
    fields = [line.split() for line in (folder / "unix").read_text().splitlines()[1:]]
    return inodes | {line[6] for line in fields if len(line) > 7}


def holds(path: Path, text: str) -> bool:
    try:
        return text.encode() in path.read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize("magic", ["connect_info", "qtconsole"])
def test_magics_for_clients_say_why_they_do_nothing(kernel: Kernel, magic: str) -> None:
    assert f"%{magic} is for clients of the notebook kernel" in kernel.gpu(f"%{magic}").stderr
