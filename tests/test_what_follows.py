"""What a `%%gpu` cell leaves in its session: it follows, on either lane, whatever happens to anybody meanwhile.

The cells hold back what they leave until a file is there.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from end_to_end import Kernel, Service, wait_until

MAKE = """
import numpy as np
x = np.zeros(1_000_000)
view = x[::2]
kept = {"epoch": 0, "x": x}
"""
STEP = "x += 1; kept['epoch'] += 1"
LOOK = "float(x[-1]), float(view.sum()), kept['epoch'], kept['x'] is x, view.base is x"


def after(steps: int) -> tuple[float, float, int, bool, bool]:
    return float(steps), 500_000.0 * steps, steps, True, True


HOLD_BACK = """
def hold_back():
    import os, pathlib, time
    from baton_shim.state import Table
    original = Table.rest
    def rest(table):
        {instead}
        Table.rest = original
        return original(table)
    Table.rest = rest
hold_back(); del hold_back
"""


class Notebook:
    """With a cell that has run, and left its memory in the session."""

    def __init__(self, kernel: Kernel, gate: Path) -> None:
        self.kernel, self.gate = kernel, gate

    def step(self, instead: str | None = None) -> None:
        hold = f"while not pathlib.Path({str(self.gate)!r}).exists(): time.sleep(0.01)"
        self.kernel.gpu(HOLD_BACK.format(instead=instead or hold) + STEP).ok()

    def let_go(self) -> None:
        self.gate.touch()

    def check(self, steps: int) -> None:
        assert self.kernel.evaluate(LOOK) == after(steps)

    def check_lost(self) -> None:
        """An ordinary cell does not run and says why; everything is as before the `%%gpu` cell."""
        failed = self.kernel.run("print('ran')", seconds=30, stop_on_error=False)
        assert failed.stdout == ""
        assert failed.error is not None
        assert failed.error[0] == "RestLost"
        assert "Your variables are as they were before it; this cell has not run" in failed.plain_traceback
        self.check(0)
        self.kernel.gpu(STEP, seconds=60).ok()
        self.check(1)


@pytest.fixture(params=["auto", "http"])
def lane(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_notebook(service: Service, new_kernel: Callable[..., Kernel], tmp_path: Path) -> Callable[..., Notebook]:
    def opened(lane: str = "auto") -> Notebook:
        kernel = service.kernel(new_kernel, BATON_LANE=lane, BATON_CELL_BYTES="0")
        kernel.run(MAKE).ok()
        return Notebook(kernel, tmp_path / "go")

    return opened


@pytest.fixture
def running(service: Service) -> Service:
    service.start_broker()
    service.start_worker()
    return service


def test_cells_in_a_row_move_it_once(running: Service, open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook("http")
    kernel = notebook.kernel
    kernel.gpu("pass").ok()
    before = stored_bytes(running)
    for _ in range(10):
        cell = kernel.begin("%%gpu\nx += np.random.default_rng(kept['epoch']).random(x.size); kept['epoch'] += 1")
    cell.finish().ok()
    kernel.run("there = sum(np.random.default_rng(n).random(x.size) for n in range(10))").ok()
    assert kernel.evaluate("bool((x == there).all())") is True
    assert stored_bytes(running) - before < 3 * 8_000_000


def stored_bytes(service: Service) -> int:
    return sum(path.stat().st_size for path in (service.data / "chunks").glob("??/*"))


def test_it_follows(running: Service, open_notebook: Callable[..., Notebook], lane: str) -> None:
    notebook = open_notebook(lane)
    notebook.step()
    status = notebook.kernel.run("%gpu_status").ok().stdout
    assert "Not here yet: 7.6 MiB of what In[2] made" in status
    notebook.let_go()
    notebook.check(1)
    assert "Not here yet" not in notebook.kernel.run("%gpu_status").ok().stdout


def test_without_a_look_it_follows_too(running: Service, open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook("http")
    notebook.kernel.gpu(STEP).ok()
    wait_until(lambda: "Not here yet" not in notebook.kernel.run("%gpu_status").stdout, "everything is here")
    notebook.kernel.kill_session()
    notebook.check(1)


def test_a_session_that_ends_first(running: Service, open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook()
    notebook.step("os._exit(3)")
    notebook.check_lost()


def test_a_worker_that_is_killed_first(running: Service, open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook()
    notebook.step()
    running.kill("worker-0")
    running.start_worker()
    notebook.check_lost()


def test_a_broker_that_is_replaced_meanwhile(
    running: Service, open_notebook: Callable[..., Notebook], lane: str
) -> None:
    notebook = open_notebook(lane)
    notebook.step()
    running.kill("broker")
    running.start_broker()
    notebook.let_go()
    notebook.check(1)
    notebook.kernel.gpu(STEP, seconds=60).ok()
    notebook.check(2)


def test_a_worker_that_leaves_hands_it_over(running: Service, open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook()
    notebook.step()
    worker = running.process("worker-0")
    worker.send_signal(signal.SIGTERM)
    running.start_worker()
    cell = notebook.kernel.begin(f"%%gpu\n{STEP}")  # it runs on the other worker, which needs everything
    wait_until(lambda: "Leaving" in running.log("worker-0"), "the worker leaves")
    notebook.let_go()
    cell.finish(seconds=60).ok()
    notebook.check(2)
    wait_until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, "the worker has left")


def test_a_session_is_not_ended_for_idleness_before(service: Service, open_notebook: Callable[..., Notebook]) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_SESSION_IDLE="200ms")
    notebook = open_notebook()
    notebook.step("time.sleep(1)")
    notebook.check(1)
    wait_until(lambda: "it was idle for long" in service.log("worker-0"), "the session ends then")


def test_an_interrupted_wait_loses_nothing(running: Service, open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook()
    notebook.step()
    cell = notebook.kernel.begin("print('ran')", stop_on_error=False)
    cell.wait_for(lambda result: "Waiting for 7.6 MiB of what In[2] made" in result.stderr, "the cell waits")
    notebook.kernel.interrupt()
    result = cell.finish()
    assert result.error is not None
    assert (result.stdout, result.error[0]) == ("", "KeyboardInterrupt")
    notebook.let_go()
    notebook.check(1)


def test_a_next_cell_that_never_started_loses_nothing(
    service: Service, open_notebook: Callable[..., Notebook], new_kernel: Callable[..., Kernel]
) -> None:
    service.start_broker()
    service.start_worker(slots=1)
    notebook = open_notebook()
    notebook.step()
    other = service.kernel(new_kernel)
    busy = other.begin("%%gpu\nprint('runs', flush=True)\nwhile True: pass")
    busy.wait_for(lambda result: "runs" in result.stdout, "another notebook computes")
    waiting = notebook.kernel.begin(f"%%gpu\n{STEP}", stop_on_error=False)
    waiting.wait_for(lambda result: result.notices, "the cell waits")
    notebook.kernel.interrupt()
    assert waiting.finish().error is not None
    notebook.let_go()
    notebook.check(1)
    other.interrupt()
    busy.finish()


def test_a_next_cell_that_is_refused_loses_nothing(running: Service, open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook()
    notebook.kernel.run(
        "class Touchy:\n"
        "    def __setstate__(self, state):\n"
        "        if 'Session' in type(get_ipython()).__name__: raise ValueError('not there')\n"
        "touchy = Touchy(); touchy.a = 1"
    ).ok()
    notebook.step()
    cell = notebook.kernel.begin(f"%%gpu\n{STEP}; touchy.a", stop_on_error=False)
    cell.wait_for(lambda result: result.notices, "the cell waits for the session")
    notebook.let_go()
    refused = cell.finish()
    assert refused.error is not None
    assert "ValueError: not there" in refused.plain_traceback
    notebook.check(1)


def test_a_restart_does_not_wait_for_it(running: Service, open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook()
    left = psutil.Process(notebook.kernel.session_pid)
    notebook.step()
    notebook.kernel.restart()
    wait_until(lambda: not left.is_running(), "the session has ended")
    notebook.kernel.run(MAKE).ok()
    notebook.kernel.gpu(STEP, seconds=60).ok()
    notebook.check(1)


def test_a_notebook_that_is_closed_leaves_nothing(running: Service, open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook()
    left = psutil.Process(notebook.kernel.session_pid)
    notebook.step()
    notebook.kernel.shutdown()
    wait_until(lambda: not left.is_running(), "the session has ended")
