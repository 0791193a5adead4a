"""A keeper has the memory as it was at the fork, and nothing else; it belongs to its worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from baton_shim.state import keeper
from harness import read_memory
from test_scanner import scanner_library

__all__ = ["scanner_library"]

SESSION = """
import mmap, os
import numpy as np
from baton_shim.state.keeper import keep
from baton_shim.state.message import SegmentView
secret = np.full(1_000_000, 42)
kept = np.arange(1_000_000)
shared = np.frombuffer(mmap.mmap(-1, 8192), dtype="uint8")
view = lambda array: SegmentView(0, array.ctypes.data, array.nbytes, True)
process = keep([view(kept)])
kept[:] = 7
refused = keep([view(shared)])
try:
    os.wait()
    children = True
except ChildProcessError:
    children = False
print(process, kept.ctypes.data, secret.ctypes.data, refused, children, flush=True)
{end}
"""


def run_session(library: Path, parent: int, end: str = "") -> list[str]:
    environment = os.environ | {
        "BATON_SCANNER": str(library),
        "JPY_PARENT_PID": str(parent),
        "PYTHONPATH": str(Path(keeper.__file__).resolve().parents[2]),
    }
    command = [sys.executable, "-c", SESSION.format(end=end)]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.split()


@pytest.fixture
def session(scanner_library: Path) -> Iterator[list[str]]:
    said = run_session(scanner_library, os.getpid())
    process = int(said[0])
    until = time.monotonic() + 100
    # It sleeps, waiting for its worker, once it has given up everything else.
    while psutil.Process(process).status() != psutil.STATUS_SLEEPING:
        assert time.monotonic() < until, "the keeper does not wait for its worker"
        time.sleep(0.01)
    yield said
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def test_memory_stays_as_it_was_after_its_process_changed_it_and_ended(session: list[str]) -> None:
    process, kept, secret = map(int, session[:3])
    for number in (0, 500_000, 999_999):
        assert int.from_bytes(read_memory(process, kept + 8 * number, 8), "little") == number
    with pytest.raises(OSError, match="Reading"):
        read_memory(process, secret + 4_000_000, 8)


def test_it_holds_no_descriptor_but_its_worker_and_is_no_child_of_its_session(session: list[str]) -> None:
    process, _, _, _, children = session
    descriptors = list(Path(f"/proc/{process}/fd").iterdir())
    assert [os.readlink(descriptor) for descriptor in descriptors] == ["anon_inode:[pidfd]"]
    assert children == "False"
    assert Path(f"/proc/{process}/comm").read_text() == "baton-keeper\n"


def test_memory_that_other_processes_may_write_to_is_not_kept(session: list[str]) -> None:
    assert session[3] == "None"


def test_without_its_worker_as_its_parent_a_session_has_none(scanner_library: Path) -> None:
    assert run_session(scanner_library, os.getpid() + 1)[0] == "None"
