"""A worker that people share does not start without a sandbox, unless its administrator wants that."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest
from end_to_end import Kernel, Service

pytestmark = pytest.mark.every_user

HIDE = "mount --bind /dev/null /usr/bin/bwrap"
"""Hides bubblewrap from the worker, as if it were not installed."""
FORBID = "echo 0 > /proc/sys/user/max_user_namespaces"
"""Denies user namespaces to all programs that the worker starts."""
CASES = {
    "missing": (HIDE, "the program bwrap is missing", "apt-get install bubblewrap"),
    "forbidden": (FORBID, "bwrap cannot start a sandbox here", "the system must allow user namespaces"),
}
WITHOUT_LANDLOCK = """
import ctypes, os, struct, sys
EOPNOTSUPP, ALLOW, ERRNO, CREATE_RULESET = 95, 0x7fff0000, 0x00050000, 444
program = struct.pack(
    "HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, CREATE_RULESET, 6, 0, 0, ERRNO | EOPNOTSUPP, 6, 0, 0, ALLOW
)
class Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == libc.prctl(22, 2, ctypes.byref(Filter(4, program)), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Runs a command as on a system that was started without Landlock."""


def prefixed(change: str) -> list[str]:
    """A command that makes the change in separate namespaces and then runs the worker."""
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", f'{change} && exec "$0" "$@"']


@pytest.mark.parametrize("case", CASES)
def test_a_worker_without_a_sandbox_says_what_to_do(service: Service, case: str) -> None:
    change, what, hint = CASES[case]
    service.start_broker()
    worker = service.begin_worker(prefix=prefixed(change), BATON_WORKER_SANDBOX="")
    assert service.wait(worker) != 0
    said = service.log(worker)
    assert what in said
    assert f"hint: {hint}" in said or hint in said.partition("hint: ")[2]
    assert 'worker.sandbox = "none"' in said
    assert ('worker.sandbox = "landlock"' in said) is (case == "forbidden")
    service.start_worker(prefix=prefixed(change), BATON_WORKER_SANDBOX="none")


@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock"])
def test_a_worker_whose_sandbox_has_a_hole_does_not_start(service: Service, sandbox: str) -> None:
    """The hole: cells may read the folder in which the worker keeps its sockets."""
    service.start_broker()
    readable = str(service.place.folder)
    worker = service.begin_worker(BATON_WORKER_SANDBOX=sandbox, BATON_WORKER_READABLE=readable)
    assert service.wait(worker) != 0
    assert f"worker.sandbox is {sandbox}, and it does not isolate sessions here" in service.log(worker)
    assert "A probe inside reached: files of the worker" in service.log(worker)


def test_a_worker_without_landlock_names_each_rule_that_is_missing(service: Service) -> None:
    service.start_broker()
    prefix = [sys.executable, "-c", WITHOUT_LANDLOCK]
    worker = service.begin_worker(prefix=prefix, BATON_WORKER_SANDBOX="landlock")
    assert service.wait(worker) != 0
    said = service.log(worker)
    for rule in (
        "files (Linux 5.13 does)",
        "devices (Linux 6.10 does)",
        "signals and abstract sockets (Linux 6.12 does)",
    ):
        assert f"it does not restrict {rule}" in said, said
    assert 'worker.sandbox = "bubblewrap", if the system allows user namespaces' in said
    service.start_worker(prefix=prefix, BATON_WORKER_SANDBOX="")


def test_landlock_gives_no_network_that_only_leads_out(service: Service) -> None:
    service.start_broker()
    worker = service.begin_worker(BATON_WORKER_SANDBOX="landlock", BATON_WORKER_NETWORK="egress")
    assert service.wait(worker) != 0
    assert "worker.network is egress, which needs bubblewrap" in service.log(worker)


def test_only_the_worker_of_one_person_has_no_sandbox(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    look = "import os\nprint(os.readlink('/proc/self/ns/pid'))"
    here = os.readlink("/proc/self/ns/pid")
    # The first cell starts `baton up`.
    alone = new_kernel(at=service.place, BATON_WORKER_SANDBOX="")
    assert alone.gpu(look).ok().stdout.strip() == here
    alone.shutdown()
    service.start_broker()
    service.start_worker(BATON_WORKER_SANDBOX="")
    assert service.kernel(new_kernel).gpu(look).ok().stdout.strip() != here
