"""Control groups of version 2 limit and end sessions. Runs in a virtual machine: see `test_control_groups.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import end_to_end.service
import psutil
import pytest
from end_to_end import Kernel, Service, wait_until

# Enough for a session. Filling more takes long in the virtual machine.
MEMORY_MIB = 256
LIMITS: dict[str, Any] = {
    "BATON_WORKER_SESSION_MEMORY": f"{MEMORY_MIB}MiB",
    "BATON_WORKER_SESSION_PROCESSES": "200",
    "BATON_WORKER_SESSION_CPUS": "2",
}
OF_SESSION = {
    "memory.max": str(MEMORY_MIB << 20),
    "memory.swap.max": "0",
    "pids.max": "200",
    "cpu.max": "200000 100000",
    "cells/memory.oom.group": "1",
}
WITHOUT_SWAP = {"memory.swap.max"}
"""Files that do not exist on a kernel without swap."""

IN_A_CHILD = """
import subprocess, sys
child = subprocess.run([sys.executable, "-c", "kept = b'1' * (1 << 30)"])
print("the session lives")
"""


def group_of(process: psutil.Process) -> Path:
    """The path as this process sees it."""
    line = Path(f"/proc/{process.pid}/cgroup").read_text().strip()
    return Path("/sys/fs/cgroup") / line.removeprefix("0::/")


def test_a_session_has_groups_with_all_limits(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    service.start_worker(**LIMITS)
    kernel = service.kernel(new_kernel)
    session = psutil.Process(kernel.session_pid)
    assert "No control group" not in service.log("worker-0")
    cells = group_of(session)
    group = cells.parent
    found = {name: (group / name).read_text().strip() for name in OF_SESSION if (group / name).exists()}
    assert found == {name: value for name, value in OF_SESSION.items() if name in found}
    assert OF_SESSION.keys() - found.keys() <= WITHOUT_SWAP
    supervisor = session.parent()
    assert supervisor is not None
    wait_until(lambda: group_of(supervisor) == group / "kept", "the supervisor is kept")
    wait_until(lambda: (cells / "cgroup.procs").read_text().split() == [str(session.pid)], "the kernel is alone")
    assert Path(f"/proc/{session.pid}/oom_score_adj").read_text() == "1000\n"
    worker = group_of(service.process("worker-0"))
    assert worker.name == "worker"
    assert (worker / "cpu.weight").read_text() == "1000\n"
    weight = group / "cpu.weight"
    wait_until(lambda: weight.read_text() == "10\n", "a session without a cell has a small share")
    cell = kernel.begin("%%gpu\nimport time\nprint('begins', flush=True)\ntime.sleep(600)")
    cell.wait_for_text("begins")
    assert weight.read_text() == "100\n"
    kernel.interrupt()
    cell.finish()
    kernel.shutdown()
    wait_until(lambda: not group.exists(), "the session's groups are gone")


def test_all_that_a_session_started_ends_together(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    """Otherwise a child that exceeds the memory would end alone, and the cell would continue without knowing why."""
    service.start_broker()
    service.start_worker(**LIMITS)
    kernel = service.kernel(new_kernel)
    result = kernel.gpu(IN_A_CHILD)
    assert result.error is not None
    assert result.error[0] == "OutOfMemory"
    assert f"the limit is {MEMORY_MIB} MiB" in result.error[1]
    assert "the session lives" not in result.stdout
    assert kernel.gpu("1 + 1").ok().value == "2"


def test_a_worker_that_shares_its_group_says_what_it_cannot_limit(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example a worker that was started in a terminal."""
    monkeypatch.setattr(end_to_end.service, "GROUPS", "")
    service.start_broker()
    service.start_worker(**LIMITS)
    log = service.log("worker-0")
    assert "No control group limits what sessions use here: memory, processes, processor time." in log
    assert "`Delegate=yes` in its systemd unit" in log
