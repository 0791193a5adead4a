"""A worker that people share does not start without a sandbox, unless its administrator wants that."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from end_to_end import Kernel, Service

HIDE = "mount --bind /dev/null /usr/bin/bwrap"
"""Hides bubblewrap from the worker, as if it were not installed."""
FORBID = "echo 0 > /proc/sys/user/max_user_namespaces"
"""Denies user namespaces to all programs that the worker starts."""
CASES = {
    "missing": (HIDE, "the program bwrap is missing", "apt-get install bubblewrap"),
    "forbidden": (FORBID, "bwrap cannot start a sandbox here", "the system must allow user namespaces"),
}


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
    service.start_worker(prefix=prefixed(change), BATON_WORKER_SANDBOX="none")


def test_a_worker_whose_sandbox_has_a_hole_does_not_start(service: Service) -> None:
    """The administrator lets cells read the folder in which the worker keeps its sockets."""
    service.start_broker()
    readable = str(service.place.folder)
    worker = service.begin_worker(BATON_WORKER_SANDBOX="", BATON_WORKER_READABLE=readable)
    assert service.wait(worker) != 0
    assert "A probe inside reached: files of the worker" in service.log(worker)


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
