"""Names that a `%%gpu` cell looks up although its code does not show them, through all of Baton, and with faults."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from end_to_end import Cell, Kernel, Service, wait_until
from end_to_end.place import WHO

SAFE = "Your variables are as they were before"


@pytest.fixture
def running(service: Service) -> Service:
    service.start_broker()
    service.start_worker()
    return service


@pytest.mark.parametrize("lane", ["auto", "http"])
def test_both_lanes_bring_the_same(running: Service, new_kernel: Callable[..., Kernel], lane: str) -> None:
    kernel = running.kernel(new_kernel, BATON_TRANSPORT=lane)
    kernel.run(
        "import numpy as np\nbase = np.arange(1_000_000, dtype='float32')\nview = base[::2]\n"
        "frame = {'view': view, 'text': 'x' * 300_000}\nholders = [frame]\nname = 'fra' + 'me'"
    ).ok()
    cell = kernel.gpu(
        "base[0] = 5\nf = eval(name)\nf['view'][1] = 7\nf['new'] = eval('holders')[0] is f\nlater = eval('vi' + 'ew')\n"
        "later[2] = 9\nfloat(base[:6].sum())"
    ).ok()
    assert cell.value == "30.0"
    assert kernel.evaluate(
        "base[:6].tolist(), frame['new'], frame['view'] is view is later, np.shares_memory(view, base), f is holders[0]"
    ) == ([5.0, 1.0, 7.0, 3.0, 9.0, 5.0], True, True, True, True)
    kernel.run("base[1] = -1").ok()
    assert kernel.gpu("eval(name)['view'][0] + base[1]").ok().value == "np.float32(4.0)"
    chunks = sum(path.is_file() for path in (running.data / "chunks").glob("??/*"))
    assert (chunks == 0) == (lane == "auto")


@pytest.mark.parametrize(
    "body",
    [
        "%time y = eval(name)",
        "%timeit -n 1 -r 2 -q y.append(eval(name))",
        "%%time\ny = eval(name)",
        "import asyncio\nawait asyncio.sleep(0)\ny = eval(name)",
        "get_ipython().run_cell('y = ' + name)",
        "exec('y = ' + name)",
        "y = [value for key, value in globals().items() if key == name]",
        "show = globals\ny = show()[name]",
        "(lambda show=globals: y.append(show().get(name)))()",
        "y = list(map(vars, [get_ipython().user_module]))[0][name]",
        "y = tools['show']().get(name)",
        "y = tools['run'](name)",
        "y = everything[name]",
    ],
)
def test_inside_of_what_ipython_runs(kernel: Kernel, body: str) -> None:
    kernel.run("x = [42]\nname = 'x'\ny = []\ntools = {'show': globals, 'run': eval}\neverything = globals()").ok()
    kernel.gpu(body).ok()
    assert "42" in str(kernel.evaluate("y"))


def test_a_library_that_looks_in_main(kernel: Kernel) -> None:
    kernel.run("import pickle\nclass Point: pass\npoint = Point()\npoint.x = 3\ndata = pickle.dumps(point)").ok()
    assert kernel.gpu("again = pickle.loads(data)\nagain.x").ok().value == "3"
    assert kernel.evaluate("type(again) is Point") is True


def test_names_are_listed_and_unknown_ones_are_errors(kernel: Kernel) -> None:
    kernel.run("x = 1\nsteps = (n for n in [1])").ok()
    assert kernel.gpu("%who").ok().stdout.split() == ["steps", "x"]
    assert kernel.gpu("'x' in dir(), 'steps' in globals(), 'nobody' in globals()").ok().value == "(True, True, False)"
    error = kernel.gpu("eval('no' + 'body')")
    assert error.error == ("NameError", "name 'nobody' is not defined")
    refused = kernel.gpu("eval('st' + 'eps')")
    assert refused.error == ("StandInError", "'steps' is a generator and cannot move to the GPU machine")
    assert "hint: create it inside the cell, or turn it into a list first" in refused.plain_traceback


# ---- faults while a name is being sent


class Slow:
    """A name `slow` that is delayed on its way to the session: pickling it waits for a signal."""

    def __init__(self, kernel: Kernel, folder: Path) -> None:
        self.kernel, self.asked, self.go = kernel, folder / "asked", folder / "go"
        for path in (self.asked, self.go):
            os.mkfifo(path)
        kernel.run(
            f"asked, go = {str(self.asked)!r}, {str(self.go)!r}\n"
            "class Slow:\n    told = False\n    def __getstate__(self):\n        if not Slow.told:\n"
            "            Slow.told = True\n            open(asked, 'w').close()\n            exec(open(go).read())\n"
            "        return {'x': 42}\n"
            "slow = Slow()\nvalues = [1]"
        ).ok()

    def begin(self, then: str = "") -> tuple[Cell, int]:
        """The cell, which waits for the name, and the process that runs it. `then` continues the expression with it."""
        cell = self.kernel.begin(
            "%%gpu\nimport os\nvalues.append(2)\nprint(" + WHO + ", flush=True)\n"
            f"found = eval('sl' + 'ow').x{then}\nvalues.append(3)"
        )
        shown = cell.wait_for(lambda result: result.stdout.endswith("\n"), "the cell runs").stdout
        session = self.kernel.place.session_pid(shown)
        self.asked.read_text()
        return cell, session

    def answer(self, at_home: str = "") -> None:
        """`at_home` runs in the notebook first."""
        self.go.write_text(at_home)


@pytest.fixture
def slow(running: Service, new_kernel: Callable[..., Kernel], tmp_path: Path) -> Slow:
    return Slow(running.kernel(new_kernel), tmp_path)


def check_arrived(cell: Cell, kernel: Kernel) -> None:
    cell.finish().ok()
    assert kernel.evaluate("values, found") == ([1, 2, 3], 42)
    assert kernel.gpu("values.append(eval('sl' + 'ow').x)\nvalues").ok().value == "[1, 2, 3, 42]"


def test_the_broker_killed_and_restarted(running: Service, slow: Slow) -> None:
    cell, _ = slow.begin()
    running.kill("broker")
    running.start_broker()
    slow.answer()
    check_arrived(cell, slow.kernel)


def test_the_answer_while_the_broker_is_away(running: Service, slow: Slow) -> None:
    cell, _ = slow.begin()
    running.kill("broker")
    slow.answer()
    running.start_broker()
    check_arrived(cell, slow.kernel)


def test_the_broker_killed_with_an_answer_that_the_worker_has_not_read(running: Service, slow: Slow) -> None:
    cell, _ = slow.begin()
    worker = running.process("worker-0")
    worker.suspend()
    running.wait_until_stopped(worker)
    slow.answer()
    running.kill("broker")
    running.start_broker()
    worker.resume()
    check_arrived(cell, slow.kernel)


def test_the_broker_killed_in_the_chunk_lane(
    running: Service, new_kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    slow = Slow(running.kernel(new_kernel, BATON_TRANSPORT="http"), tmp_path)
    cell, _ = slow.begin()
    running.kill("broker")
    slow.answer()
    running.start_broker()
    check_arrived(cell, slow.kernel)


def test_the_worker_killed(running: Service, slow: Slow) -> None:
    cell, session = slow.begin()
    running.kill("worker-0")
    slow.answer()
    lost = cell.finish()
    assert lost.error is not None, lost.outputs
    assert SAFE in lost.plain_traceback
    assert slow.kernel.evaluate("values") == [1]
    wait_until(lambda: not psutil.pid_exists(session), "the dead worker's session ended")
    running.start_worker()
    assert slow.kernel.gpu("eval('sl' + 'ow').x").ok().value == "42"


def test_the_session_killed(slow: Slow) -> None:
    cell, session = slow.begin()
    os.kill(session, signal.SIGKILL)
    slow.answer()
    lost = cell.finish()
    assert SAFE in lost.plain_traceback
    assert slow.kernel.evaluate("values") == [1]
    assert slow.kernel.gpu("values.append(eval('sl' + 'ow').x)\nvalues").ok().value == "[1, 42]"


def test_an_interrupt(slow: Slow) -> None:
    # The interrupt may arrive after the name.
    cell, _ = slow.begin(" + __import__('time').sleep(600)")
    slow.kernel.interrupt()
    slow.answer()
    assert cell.finish().error == ("KeyboardInterrupt", "")
    assert slow.kernel.evaluate("values, 'found' in globals()") == ([1, 2], False)
    assert slow.kernel.gpu("values.append(eval('sl' + 'ow').x)\nvalues").ok().value == "[1, 2, 42]"


def test_a_second_interrupt_leaves_a_name_that_does_not_get_on_its_way(
    service: Service, new_kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_CANCEL_GRACE="75s")  # a shorter one would let the first one end it, too
    slow = Slow(service.kernel(new_kernel), tmp_path)
    cell, session = slow.begin()
    slow.answer("import signal; signal.raise_signal(signal.SIGINT); open(asked, 'w').close(); open(go).read()")
    slow.asked.read_text()  # the first interrupt had no effect
    slow.kernel.interrupt()
    interrupted = cell.finish(seconds=60)
    assert interrupted.error == ("KeyboardInterrupt", "")
    assert SAFE in interrupted.plain_traceback
    assert slow.kernel.evaluate("values") == [1]
    wait_until(lambda: not psutil.pid_exists(session), "the session that waits for the name ends")
    assert slow.kernel.gpu("eval('sl' + 'ow').x").ok().value == "42"


def test_the_time_limit(running: Service, new_kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    slow = Slow(running.kernel(new_kernel), tmp_path)
    slow.kernel.gpu("pass").ok()  # the limit includes the start of a session
    cell = slow.kernel.begin("%%gpu --timeout 20s\nvalues.append(2)\neval('sl' + 'ow')")
    slow.asked.read_text()
    wait_until(lambda: "stopped by the time limit" in running.answers("/"), "the limit has passed")
    slow.answer()
    assert cell.finish().error[0] == "CellTimeout"
    assert slow.kernel.evaluate("values") == [1]


def test_the_notebook_is_closed(running: Service, slow: Slow) -> None:
    _, session = slow.begin()
    slow.kernel.shutdown()
    wait_until(lambda: not psutil.pid_exists(session), "the session ended with its notebook")
