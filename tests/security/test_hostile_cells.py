"""Cells that take more of the machine than their share, or do not end: other notebooks do not notice it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from end_to_end import Kernel, Service
from end_to_end.restricted import WITHOUT_USER_NAMESPACES

pytestmark = pytest.mark.every_user

PROCESSES = 100

BOMB = """
import os
print("begins", flush=True)
while True:
    try:
        os.fork()
    except OSError:
        pass
"""

FLOOD = """
import os
print("begins", flush=True)
while True:
    for stream in (1, 2):
        os.write(stream, (b"x" * 99 + b"\\n") * 10_000)
"""

ORPHANS = f"""
import os, time
def fork_orphan():
    deadline = time.monotonic() + 100
    while True:
        try:
            return os.fork()
        except BlockingIOError:  # the parent of orphans has not noticed yet that some have ended
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
for _ in range(3 * {PROCESSES}):
    if (child := fork_orphan()) == 0:
        try:
            fork_orphan()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
"""

SLOW = """
class Slow:
    def __getstate__(self):
        return {}
    def __setstate__(self, state):
        import sys, time
        if "baton_shim.session.kernel" in sys.modules:
            time.sleep(60)
slow = Slow()
"""

ENDLESS = """
import os, signal, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
value = "of the cell"
print("begins", flush=True)
while True:
    time.sleep(1)
"""


@pytest.fixture
def limited(service: Service) -> Service:
    service.start_broker()
    service.start_worker(BATON_WORKER_SANDBOX="bubblewrap", BATON_WORKER_SESSION_PROCESSES=str(PROCESSES))
    if "processes" in service.unlimited() and os.geteuid() == 0:
        pytest.skip("NOT TESTED: nothing limits the processes of a session of root here")
    return service


@pytest.mark.parametrize("code", [pytest.param(BOMB, id="fork bomb"), pytest.param(FLOOD, id="flood of output")])
def test_other_notebooks_do_not_notice(limited: Service, new_kernel: Callable[..., Kernel], code: str) -> None:
    hostile, other = limited.kernel(new_kernel), limited.kernel(new_kernel)
    other.gpu("x = 1").ok()
    cell = hostile.begin(f"%%gpu{code}")
    cell.wait_for_text("begins")
    for number in range(2, 6):
        assert other.gpu("import subprocess\nx += len(subprocess.check_output(['echo']))\nx").ok().value == str(number)
    hostile.interrupt()
    hostile.interrupt()
    assert cell.finish().error is not None
    assert hostile.gpu("1 + 1").ok().value == "2"


def test_orphans_that_have_ended_do_not_count(limited: Service, new_kernel: Callable[..., Kernel]) -> None:
    limited.kernel(new_kernel).gpu(ORPHANS).ok()


def test_rebuilding_variables_is_part_of_the_cells_time(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    service.start_worker()
    kernel = service.kernel(new_kernel)
    kernel.run(SLOW).ok()
    began = time.monotonic()
    result = kernel.begin("%%gpu --timeout 3s\nslow").finish()
    assert time.monotonic() - began < 50
    assert result.error is not None
    assert "Stopped after 3 s" in str(result.error)
    assert kernel.gpu("1 + 1").ok().value == "2"


@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock"])
def test_a_cell_that_ignores_every_signal_ends_with_its_session(
    service: Service, new_kernel: Callable[..., Kernel], sandbox: str
) -> None:
    """The end of the service reports any process that is left."""
    service.start_broker()
    prefix = WITHOUT_USER_NAMESPACES if sandbox == "landlock" else []
    service.start_worker(prefix=prefix, BATON_WORKER_SANDBOX=sandbox)
    kernel = service.kernel(new_kernel)
    kernel.run("value = 'of the notebook'").ok()
    cell = kernel.begin(f"%%gpu{ENDLESS}")
    cell.wait_for_text("begins")
    kernel.interrupt()
    assert cell.finish().error is not None
    assert kernel.evaluate("value") == "of the notebook"
    assert kernel.gpu("value").ok().value == "'of the notebook'"
