"""Deferred state of a `%%gpu` cell: it arrives, by either transport, whatever fails meanwhile.

The cells hold back their deferred state until a file exists.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest
from end_to_end import Kernel, Service, wait_until
from end_to_end.kernel import CATCHES_INTERRUPTS
from end_to_end.place import WHO, has_words, lives
from end_to_end.service import broken_store, exhausted_descriptors, stopped

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
    original = Table.snapshot_deferred
    def snapshot(table):
        {instead}
        Table.snapshot_deferred = original
        return original(table)
    Table.snapshot_deferred = snapshot
hold_back(); del hold_back
"""


class Notebook:
    """A notebook with a cell that has run, and left its memory in the session."""

    def __init__(self, kernel: Kernel, gate: Path) -> None:
        self.kernel, self.gate = kernel, gate

    def send(self) -> None:
        """Afterwards all variables are in the session, and in the notebook."""
        self.kernel.gpu("x, kept").ok()
        self.check(0)

    def step(self, instead: str | None = None, code: str = STEP) -> None:
        hold = f"while not pathlib.Path({str(self.gate)!r}).exists(): time.sleep(0.01)"
        self.kernel.gpu(HOLD_BACK.format(instead=instead or hold) + code).ok()

    def let_go(self) -> None:
        self.gate.touch()

    def check(self, steps: int) -> None:
        assert self.kernel.evaluate(LOOK) == after(steps)

    def check_lost(self) -> None:
        """An ordinary cell reports it and runs; everything is as before the `%%gpu` cell."""
        told = self.kernel.run("print('ran')").ok()
        assert told.stdout == "ran\n"
        assert "warning: The results of In[2] are lost: " in told.stderr
        assert "Your variables kept, x are as they were before In[2]. Run In[2] again" in told.stderr
        assert self.kernel.run("print('ran')").ok().stderr == ""
        self.check(0)
        self.kernel.gpu(STEP).ok()
        self.check(1)

    def stop_twice(self) -> None:
        """A cell that changes everything in place, and does not end when it is stopped once."""
        cell = self.kernel.begin("%%gpu\nx += 100; kept['epoch'] += 100\n" + CATCHES_INTERRUPTS)
        cell.wait_for_text("runs")
        self.kernel.interrupt()
        cell.wait_for_text("goes on")
        self.kernel.interrupt()
        error = cell.finish().error
        assert error is not None
        assert error[0] == "KeyboardInterrupt"


@pytest.fixture(params=["auto", "http"])
def lane(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_notebook(service: Service, new_kernel: Callable[..., Kernel]) -> Callable[..., Notebook]:
    def opened(lane: str = "auto") -> Notebook:
        kernel = service.kernel(new_kernel, BATON_TRANSPORT=lane, BATON_CELL_BYTES="0")
        kernel.run(MAKE).ok()
        return Notebook(kernel, service.place.signs / "go")

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
    kernel.run("import time; begins = []; ends = []").ok()
    before = stored_bytes(running)
    for _ in range(10):
        cell = kernel.begin(
            "%%gpu\nbegins.append(time.monotonic())\nx += np.random.default_rng(kept['epoch']).random(x.size)\n"
            "kept['epoch'] += 1; ends.append(time.monotonic())"
        )
    cell.finish().ok()
    kernel.run("there = sum(np.random.default_rng(n).random(x.size) for n in range(10))").ok()
    assert kernel.evaluate("bool((x == there).all())") is True
    # On a slow machine, the next cell may begin so late that the worker has begun to send.
    late = kernel.evaluate("sum(begin - end >= 0.1 for end, begin in zip(ends, begins[1:]))")
    assert stored_bytes(running) - before < (3 + late) * 8_000_000


def stored_bytes(service: Service) -> int:
    return sum(path.stat().st_size for path in (service.data / "chunks").glob("??/*"))


def test_it_follows(running: Service, open_notebook: Callable[..., Notebook], lane: str) -> None:
    notebook = open_notebook(lane)
    notebook.step()
    status = notebook.kernel.run("%gpu_status").ok().stdout
    assert "Not here yet: 7.6 MiB of the results of In[2]" in status
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


@pytest.mark.parametrize(
    "trouble",
    [
        broken_store,
        pytest.param(exhausted_descriptors, marks=pytest.mark.root("count the descriptors of a hardened process")),
    ],
)
def test_a_broker_that_lacks_room_or_descriptors_for_a_while(
    running: Service,
    open_notebook: Callable[..., Notebook],
    trouble: Callable[[Service], AbstractContextManager[None]],
) -> None:
    notebook = open_notebook("http")
    notebook.send()
    notebook.step()
    with trouble(running):
        notebook.let_go()
        wait_until(lambda: "could not be sent yet" in running.log("worker-0"), "the worker has tried")
        assert "Not here yet: 7.6 MiB of the results of In[3]" in notebook.kernel.run("%gpu_status").ok().stdout
    notebook.check(1)
    notebook.kernel.gpu(STEP).ok()
    notebook.check(2)


def test_bytes_that_the_broker_has_lost_are_sent_again(
    running: Service, open_notebook: Callable[..., Notebook]
) -> None:
    notebook = open_notebook("http")
    notebook.send()
    before = stored_bytes(running)
    notebook.step(code="x[:] = np.random.default_rng(1).random(x.size)")
    with stopped(notebook.kernel.proxy):
        notebook.let_go()
        wait_until(lambda: stored_bytes(running) - before >= 8_000_000, "the bytes are at the broker")
        for chunk in (running.data / "chunks").glob("??/*"):
            chunk.write_bytes(b"spoiled")
    assert notebook.kernel.evaluate("bool((x == np.random.default_rng(1).random(x.size)).all())") is True


@pytest.mark.parametrize("end", ["stop", "crash", "kill the worker's session", "use up memory"])
def test_a_later_cell_that_fails_takes_nothing_of_an_earlier_one(
    service: Service, open_notebook: Callable[..., Notebook], lane: str, end: str
) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_SESSION_MEMORY="400MiB")
    notebook = open_notebook(lane)
    kernel = notebook.kernel
    notebook.step("pass")
    match end:
        case "stop":
            notebook.stop_twice()
        case "crash":
            assert kernel.gpu("x += 100; kept['epoch'] = 100; import os; os._exit(3)").error is not None
        case "kill the worker's session":
            cell = kernel.begin("%%gpu\nx += 100; import os, time; print(" + WHO + ", flush=True); time.sleep(600)")
            printed = cell.wait_for(lambda result: result.stdout.endswith("\n"), "the cell runs")
            psutil.Process(kernel.place.session_pid(printed.stdout)).kill()
            assert cell.finish().error is not None
        case _:
            cell = kernel.begin("%%gpu\nx += 100; more = np.ones(300_000_000); import time; time.sleep(600)")
            error = cell.finish().error
            assert error is not None
            assert error[0] == "OutOfMemory"
    notebook.check(1)
    kernel.gpu(STEP).ok()
    notebook.check(2)


def test_what_could_not_be_sent_yet_survives_a_stopped_cell(
    running: Service, open_notebook: Callable[..., Notebook]
) -> None:
    notebook = open_notebook("http")
    kernel = notebook.kernel
    notebook.send()
    with broken_store(running):
        notebook.step("pass")
        notebook.stop_twice()
        assert "Not here yet: 7.6 MiB of the results of " in kernel.run("%gpu_status").ok().stdout
    notebook.check(1)


def step_and_lose(notebook: Notebook, session: psutil.Process, service: Service) -> None:
    """A step whose memory cannot be sent yet, and the end of its session."""
    notebook.step("pass")
    wait_until(lambda: "could not be sent yet" in service.log("worker-0"), "the worker has tried")
    session.kill()
    wait_until(lambda: "ended while no cell ran" in service.log("worker-0"), "the worker knows")


def test_a_session_that_ends_after_it_has_settled(running: Service, open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook("http")
    session = psutil.Process(notebook.kernel.session_pid)
    notebook.send()
    with broken_store(running):
        step_and_lose(notebook, session, running)
    assert notebook.kernel.evaluate("float(x[-1]), kept['epoch']") == (1.0, 1)


def test_a_cell_that_is_sent_anew_is_in_the_list_once(running: Service, open_notebook: Callable[..., Notebook]) -> None:
    """Its session is gone, so everything is needed, and some of that has not arrived yet."""
    notebook = open_notebook("http")
    session = psutil.Process(notebook.kernel.session_pid)
    notebook.send()
    with broken_store(running):
        step_and_lose(notebook, session, running)
        cell = notebook.kernel.begin(f"%%gpu\n{STEP}")
        wait_until(lambda: "cancelled" in running.log("broker"), "the cell is withdrawn")
    cell.finish().ok()
    notebook.check(2)
    assert [job["outcome"] for job in running.jobs()] == ["ok"] * 4


def test_without_a_keeper_the_next_cell_waits(running: Service, open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook("http")
    kernel = notebook.kernel
    kernel.gpu("import baton_shim.state.keeper as keeper; keeper.keep = lambda segments: None").ok()
    notebook.send()
    with broken_store(running):
        notebook.step("pass")
        cell = kernel.begin("%%gpu\nprint('ran')\nx += 1; kept['epoch'] += 1")
        cell.wait_for(lambda result: result.notices, "the cell waits")
        wait_until(lambda: "could not be sent yet" in running.log("worker-0"), "the worker has tried")
        assert "ran" not in cell.so_far.stdout
    assert cell.finish().ok().stdout == "ran\n"
    notebook.check(2)


def test_a_worker_that_is_killed_first(service: Service, open_notebook: Callable[..., Notebook]) -> None:
    """It returns under its own name, so nothing waits for what its former process kept."""
    service.start_broker(BATON_BROKER_WORKER_GRACE="60s")
    service.start_worker()
    notebook = open_notebook()
    notebook.step()
    service.kill("worker-0")
    service.start_worker("worker-0")
    notebook.check_lost()


def service_of_its_own(service: Service) -> psutil.Process | None:
    """Set once the process that starts it in the background has ended."""
    found = [process for process in service.place.processes() if has_words(process, ("baton", "up"))]
    return found[0] if len(found) == 1 else None


def test_a_service_of_its_own_that_is_killed_first(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    kernel = new_kernel(at=service.place, BATON_CELL_BYTES="0")
    kernel.run(MAKE).ok()
    notebook = Notebook(kernel, service.place.signs / "go")
    notebook.step()
    for _ in range(2):  # the second time, before the loss was reported
        both = wait_until(lambda: service_of_its_own(service), "it is there")
        both.kill()
        both.wait()
    wait_until(lambda: service_of_its_own(service), "it is there again")
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
    notebook.kernel.gpu(STEP).ok()
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
    cell.finish().ok()
    notebook.check(2)
    wait_until(lambda: not lives(worker), "the worker has left")


def test_a_session_is_not_ended_for_idleness_before(service: Service, open_notebook: Callable[..., Notebook]) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_SESSION_IDLE="200ms")
    notebook = open_notebook()
    notebook.step("time.sleep(1)")
    notebook.check(1)
    wait_until(lambda: "it was idle too long" in service.log("worker-0"), "the session ends then")


def test_an_idle_worker_does_not_leave_before(service: Service, open_notebook: Callable[..., Notebook]) -> None:
    service.start_broker()
    notebook = open_notebook()
    first = notebook.kernel.begin("%%gpu\n" + HOLD_BACK.format(instead="time.sleep(8)") + STEP)
    wait_until(service.jobs, "the cell waits")
    worker = service.begin_worker(BATON_WORKER_IDLE_EXIT="8s")
    first.finish().ok()
    # One right after the other, because an idle worker waits only so long for the next cell.
    look = notebook.kernel.begin(f"seen = {LOOK}")
    second = notebook.kernel.begin(f"%%gpu\n{STEP}")
    look.finish().ok()
    second.finish().ok()
    assert notebook.kernel.evaluate("seen") == after(1)
    wait_until(lambda: "so this worker leaves" in service.log(worker), "the worker leaves then")


def test_an_interrupted_wait_loses_nothing(running: Service, open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook()
    notebook.step()
    cell = notebook.kernel.begin("print('ran')", stop_on_error=False)
    cell.wait_for(lambda result: "Waiting for 7.6 MiB of the results of In[2]" in result.stderr, "the cell waits")
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
        "import sys\n"
        "class Touchy:\n"
        "    def __setstate__(self, state):\n"
        "        if 'baton_shim.session.kernel' in sys.modules: raise ValueError('not there')\n"
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
    notebook.kernel.gpu(STEP).ok()
    notebook.check(1)


def test_a_notebook_that_is_closed_leaves_nothing(running: Service, open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook()
    left = psutil.Process(notebook.kernel.session_pid)
    notebook.step()
    notebook.kernel.shutdown()
    wait_until(lambda: not left.is_running(), "the session has ended")
