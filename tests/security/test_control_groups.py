"""Sessions in control groups.

Many machines that run tests do not have version 2. So a separate kernel runs its tests, with an ordinary user to whom a
group was delegated.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from end_to_end import Kernel, Service, guest

TESTS = [
    "tests/security/groups_of_version_2.py",
    "tests/security/test_sandbox.py::test_every_attempt_fails_in_the_sandbox_and_succeeds_without[bubblewrap-forked]",
    "tests/security/test_sandbox.py::test_nothing_is_left_of_a_sandboxed_session[bubblewrap-forked]",
    "tests/security/test_sandbox.py::test_a_cell_beyond_its_memory_is_told_so[bubblewrap-variables]",
    "tests/security/test_sandbox.py::test_a_cell_beyond_its_memory_is_told_so[bubblewrap-memory files]",
    "tests/test_what_follows.py::test_a_later_cell_that_fails_takes_nothing_of_an_earlier_one[http-use up memory]",
]


@pytest.mark.timeout(1000)
def test_on_a_kernel_with_version_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    status, output = guest.run(command, tmp_path)
    assert status == 0, output
    assert re.search(r"^8 passed", output, re.MULTILINE), output


OF_VERSION_1 = Path("/sys/fs/cgroup/memory")
LIMITS = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
"""Of memory, and of memory and swap together."""


@pytest.mark.root("make control groups of version 1")
def test_with_version_1_nothing_is_swapped(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    if not (OF_VERSION_1 / LIMITS[1]).exists():
        pytest.skip("NOT TESTED: no control groups of version 1 here, or they do not count swap")
    service.start_broker()
    service.start_worker(BATON_WORKER_SANDBOX="bubblewrap", BATON_WORKER_SESSION_MEMORY="512MiB")
    service.kernel(new_kernel).gpu("pass").ok()
    if "No control group limits what sessions use here: memory" in service.log("worker-0"):
        pytest.skip("NOT TESTED: this user may create no control groups")
    groups = list(OF_VERSION_1.rglob(f"baton-{service.process('worker-0').pid}-*"))
    assert groups
    for group in groups:
        assert [(group / name).read_text().strip() for name in LIMITS] == [str(512 << 20)] * 2
