"""The stop button works in every phase of a `%%gpu` cell, and the next cell works."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from end_to_end import Cell, Kernel, Service, wait_until
from end_to_end.network import Network
from end_to_end.results import Result
from end_to_end.service import run_binary, stopped

SAFE = "Your variables are as they were before the cell"

CATCHES_INTERRUPTS_UNTIL = """\
import os, time
while not os.path.exists({0!r}):
    try:
        print('runs', flush=True)
        while not os.path.exists({0!r}): time.sleep(0.01)
    except KeyboardInterrupt:
        print('goes on', flush=True)
"""
"""A cell's last lines, which end when a file exists."""


def last_job(service: Service) -> dict[str, Any]:
    jobs: list[dict[str, Any]] = json.loads(run_binary(service.place, "jobs", "--json", **service.access).stdout)
    return jobs[0]


def interrupt(cell: Cell, seconds: float = 120) -> Result:
    """Presses stop; the cell ends as interrupted, within this time.

    Without an interrupt, it would go on for ten minutes. `benches/interrupt.py` measures how fast interrupts are.
    """
    cell.kernel.interrupt()
    result = cell.finish(seconds)
    assert result.error is not None, result.outputs
    assert result.error[0] == "KeyboardInterrupt"
    return result


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("print('begun')\nwhile True:\n    pass", id="Python"),
        pytest.param("print('begun')\nimport time\ntime.sleep(600)", id="sleep"),
        pytest.param("print('begun')\nimport subprocess\nsubprocess.run(['sleep', '600'])", id="child process"),
        pytest.param("print('begun')\nimport asyncio\nawait asyncio.sleep(600)", id="await"),
        pytest.param("print('begun')\nwhile True:\n    print('x' * 50)", id="printing"),
    ],
)
def test_while_the_cell_runs(kernel: Kernel, body: str) -> None:
    kernel.run("changed = []").ok()
    # Not flushed: when the text arrives, the cell is past the print.
    cell = kernel.begin(f"%%gpu\nchanged.append(1)\n{body}")
    cell.wait_for_text("begun")
    interrupt(cell)
    assert kernel.evaluate("changed") == [1]
    assert kernel.gpu("changed.append(2)\nchanged").ok().value == "[1, 2]"


def test_sigterm_ends_what_a_cell_starts_but_not_the_session(kernel: Kernel) -> None:
    """Batch systems send it to all processes of a worker's job."""
    code = (
        "import multiprocessing, os, signal, subprocess, time\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "program = subprocess.Popen(['sleep', '600'])\n"
        "program.terminate()\n"
        "fork = multiprocessing.get_context('fork').Process(target=time.sleep, args=(600,))\n"
        "fork.start()\n"
        "fork.terminate()\n"
        "fork.join()\n"
        "program.wait(), fork.exitcode"
    )
    assert kernel.gpu(code).ok().value == "(-15, -15)"


def test_while_a_shell_command_runs(kernel: Kernel) -> None:
    """IPython ends the command, and the cell continues; as in any kernel."""
    # The command prints the marker itself. During its start, IPython answers interrupts with UnboundLocalError.
    cell = kernel.begin("%%gpu\nasked = []\n!echo begun; sleep 600\nasked.append(1)")
    cell.wait_for_text("begun")
    kernel.interrupt()
    assert cell.finish().ok().stdout.split() == ["begun", "^C"]
    assert kernel.evaluate("asked") == [1]


def test_while_the_cell_asks(kernel: Kernel) -> None:
    cell = kernel.begin("%%gpu\nasked = True\ninput()")
    cell.wait_for_question()
    interrupt(cell)
    assert kernel.evaluate("asked") is True
    assert kernel.run("%%gpu\ninput()", answers=["now"]).ok().value == "'now'"


def test_the_cell_may_clean_up(kernel: Kernel) -> None:
    cell = kernel.begin(
        "%%gpu\nimport time\ntry:\n    print('begun')\n    time.sleep(600)\nfinally:\n    cleaned = True"
    )
    cell.wait_for_text("begun")
    interrupt(cell)
    assert kernel.evaluate("cleaned") is True


def test_a_cell_that_does_not_stop_is_left_by_the_second_press(
    service: Service, new_kernel: Callable[..., Kernel]
) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_CANCEL_GRACE="75s")  # a shorter one would let the first press end it, too
    kernel, go = service.kernel(new_kernel), service.place.signs / "go"
    kernel.run("kept = 1").ok()
    cell = kernel.begin(f"%%gpu\nkept = 2\n{CATCHES_INTERRUPTS_UNTIL.format(str(go))}")
    cell.wait_for_text("runs")
    kernel.interrupt()
    cell.wait_for_text("goes on")
    interrupt(cell, seconds=60)
    assert kernel.evaluate("kept") == 1
    following = kernel.begin("%%gpu\nkept + 1")
    wait_until(lambda: len(service.jobs()) == 2, "the next cell waits for the worker")
    go.touch()
    assert following.finish().ok().value == "2"


def test_files_that_came_home_before_the_second_press_go_back(
    service: Service, new_kernel: Callable[..., Kernel]
) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    kernel, go = service.kernel(new_kernel), service.place.signs / "go"
    written, pid = service.place.work / "written", kernel.evaluate("__import__('os').getpid()")
    cell = kernel.begin(
        f"%%gpu\nimport os, time\nwhile True:\n    try:\n        print('runs', flush=True)\n"
        f"        while not os.path.exists({str(go)!r}): time.sleep(0.01)\n        break\n"
        "    except KeyboardInterrupt: print('goes on', flush=True)\n"
        "open('written', 'w').write('by the cell')"
    )
    cell.wait_for_text("runs")
    kernel.interrupt()
    cell.wait_for_text("goes on")
    proxy = kernel.proxy
    with stopped(proxy):
        service.wait_until_stopped(proxy)
        os.kill(pid, signal.SIGINT)
        go.touch()
        wait_until(lambda: last_job(service)["state"] == "finished", "the worker has sent the result")
    assert cell.finish().error == ("KeyboardInterrupt", "")
    wait_until(lambda: last_job(service)["outcome"] == "cancelled", "the list says what the notebook says")
    assert not written.exists()
    assert kernel.gpu("__import__('os').path.exists('written')").ok().value == "False"


def test_the_cells_behind_it_are_not_run(kernel: Kernel) -> None:
    first = kernel.begin("%%gpu\nprint('begun')\nwhile True:\n    pass", stop_on_error=True)
    second = kernel.begin("%%gpu\nprint('second')")
    first.wait_for_text("begun")
    interrupt(first)
    assert second.finish().reply["status"] == "aborted"
    assert kernel.gpu("print('next')").ok().stdout == "next\n"


def test_while_it_waits_for_a_worker(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    kernel = service.kernel(new_kernel)
    cell = kernel.begin("%%gpu\nran = 1")
    cell.wait_for(lambda result: result.notices, "the line says that it waits")
    interrupt(cell)
    service.start_worker()
    assert kernel.gpu("'ran' in dir()").ok().value == "False"


def test_while_it_waits_behind_another(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    service.start_worker(slots=1)
    first, second = service.kernel(new_kernel), service.kernel(new_kernel)
    running = first.begin("%%gpu\nprint('begun')\nwhile True:\n    pass")
    running.wait_for_text("begun")
    waiting = second.begin("%%gpu\nprint('second')")
    waiting.wait_for(lambda result: "1st in line" in str(result.notices), "the line says its place")
    interrupt(waiting)
    interrupt(running)
    assert second.gpu("print('now')").ok().stdout == "now\n"


def test_while_the_service_does_not_answer(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    service.start_worker()
    kernel = service.kernel(new_kernel)
    kernel.run("import numpy as np\nx = np.ones(3_000_000)").ok()
    kernel.gpu("pass").ok()
    with stopped(service.broker):
        cell = kernel.begin("%%gpu\nx += 1")
        cell.wait_for(lambda result: result.notices, "the line says what is going on")
        assert SAFE in interrupt(cell).plain_traceback
    assert kernel.gpu("float(x.sum())").ok().value == "3000000.0"


def test_while_the_result_comes_home(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_SANDBOX="none")  # the cell stops the broker
    kernel = service.kernel(new_kernel)
    kernel.run("import numpy as np\nx = np.ones(3_000_000)").ok()
    # The cell's last action stops the broker, so returning its state never ends by itself.
    cell = kernel.begin(
        f"%%gpu\nimport os, signal\nx += 1\nprint('ran')\nos.kill({service.broker.pid}, signal.SIGSTOP)"
    )
    service.wait_until_stopped(service.broker)
    interrupt(cell)
    service.broker.send_signal(signal.SIGCONT)
    assert kernel.evaluate("float(x.sum())") == 3e6
    wait_until(lambda: service.jobs()[0]["outcome"] == "cancelled", "the list says what the notebook says")
    assert kernel.gpu("float(x.sum())").ok().value == "3000000.0"


def test_a_cell_whose_changes_take_long_to_return_keeps_them(new_kernel: Callable[..., Kernel]) -> None:
    kernel = new_kernel()
    cell = kernel.begin(
        "%%gpu\nimport time\nclass Slow:\n    def __getstate__(self):\n        time.sleep(6)\n        return {}\n"
        "slow, changed = Slow(), [1]\nprint('begun', flush=True)\ntime.sleep(600)"
    )
    cell.wait_for_text("begun")
    kernel.interrupt()
    result = cell.finish()
    assert result.error is not None
    assert result.error[0] == "KeyboardInterrupt"
    assert kernel.evaluate("changed") == [1]


def test_a_stop_whose_word_is_lost_on_the_way(
    service: Service, new_kernel: Callable[..., Kernel], network: Network
) -> None:
    """The list agrees with the notebook, once the broker can be reached again."""
    service.start_broker()
    service.start_worker()
    relay = network.relay(service.address, f"unix:{service.place.folder}/run/notebook.sock")
    kernel = service.kernel(new_kernel, BATON_BROKER_ADDRESS=relay.address, BATON_TRANSPORT="http")
    kernel.gpu("import numpy as np\nprint('warm')").ok()
    go = service.place.signs / "go"
    cell = kernel.begin(
        f"%%gpu\nimport os, time\nprint('begun')\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.01)\n"
        "x = np.ones(1_000_000)"
    )
    cell.wait_for_text("begun")
    relay.swallow("there")
    go.touch()
    wait_until(lambda: relay.has_swallowed("there"), "the notebook asks for the cell's result")
    interrupt(cell)
    relay.break_off()
    wait_until(lambda: service.jobs()[0]["outcome"] == "cancelled", "the list says what the notebook says")
    assert kernel.gpu("'next'").ok().value == "'next'"


# Strikes after this many parts of the next message that the kernel's main thread sends in parts.
STRIKE = """
import signal, threading, zmq
def send(self, part, flags=0, *arguments, _send=zmq.Socket.send, _sent=[], **options):
    result = _send(self, part, flags, *arguments, **options)
    if threading.current_thread() is threading.main_thread() and flags & zmq.SNDMORE:
        _sent.append(part)
        if len(_sent) == {parts}:
            zmq.Socket.send = _send
            signal.raise_signal(signal.SIGINT)
    return result
zmq.Socket.send = send
"""


@pytest.mark.parametrize("parts", [1, 6])
def test_an_ordinary_cell_that_is_interrupted_while_it_replies(kernel: Kernel, parts: int) -> None:
    """Between the parts of a reply, the kernel's main thread lets the interrupting thread run."""
    kernel.run(STRIKE.format(parts=parts)).ok()
    assert kernel.run("'next'").ok().value == "'next'"


def test_an_ordinary_cell_that_is_interrupted_while_it_asks(kernel: Kernel) -> None:
    asking = kernel.run(f"{STRIKE.format(parts=3)}\ninput()", answers=["too late"])
    assert asking.error is not None
    assert asking.error[0] == "KeyboardInterrupt"
    assert kernel.run("input()", answers=["now"]).ok().value == "'now'"


# Presses stop in the notebook while the cell's changes are applied.
LATE = """
import os, signal
home = os.getpid()
class Late:
    def __setstate__(self, state):
        self.__dict__ = state
        if os.getpid() == home:
            os.kill(home, signal.SIGINT)
"""


def test_a_cell_that_had_ended_is_not_interrupted(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    """As in any cell, and the list of jobs agrees."""
    service.start_broker()
    service.start_worker()
    kernel = service.kernel(new_kernel)
    kernel.run(LATE).ok()
    assert kernel.gpu("late = Late()\nlate.value = 1\n'done'").ok().value == "'done'"
    assert kernel.evaluate("late.value") == 1
    (job,) = service.jobs()
    assert job["outcome"] == "ok"


def test_a_restart_frees_the_worker(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    """The other way to stop a cell: the worker does not wait for a notebook that has ended."""
    service.start_broker()
    service.start_worker(slots=1)
    kernel = service.kernel(new_kernel)
    cell = kernel.begin("%%gpu\nprint('begun')\nwhile True:\n    pass")
    cell.wait_for_text("begun")
    kernel.restart()
    # Less than the 75 s after which the broker gives up a notebook that does not respond.
    assert kernel.gpu("print('free')", seconds=60).ok().stdout == "free\n"


# Strikes while the kernel itself works: before the cell's code, or after it.
AROUND = """
import os, signal
shell = get_ipython()
def strike():
    os.kill(os.getpid(), signal.SIGINT)
    sum(range(1000))
def before(lines):
    shell.input_transformers_cleanup.remove(before)
    strike()
    return lines
def strike_in(owner, name):
    real = getattr(owner, name)
    def strikes(*arguments):
        delattr(owner, name)
        strike()
        return real(*arguments)
    setattr(owner, name, strikes)
"""


def test_an_interrupt_before_the_code_of_an_ordinary_cell_stops_it(kernel: Kernel) -> None:
    kernel.run(AROUND).ok()
    for cell in ("ran = True", "import asyncio\nawait asyncio.sleep(600)\nran = True"):
        kernel.run("ran = False; shell.input_transformers_cleanup.append(before)").ok()
        result = kernel.run(cell)
        assert result.error is not None
        assert result.error[0] in ("KeyboardInterrupt", "CancelledError")  # the second in a cell that awaits
        assert kernel.evaluate("ran") is False


@pytest.mark.parametrize(
    "kernels_own", ["shell.history_manager, 'store_output'", "shell.payload_manager, 'read_payload'"]
)  # before and after what runs after each cell
def test_an_interrupt_behind_the_code_of_an_ordinary_cell_does_nothing(kernel: Kernel, kernels_own: str) -> None:
    kernel.run(AROUND).ok()
    assert kernel.run(f"strike_in({kernels_own})\n'this'").ok().value == "'this'"
    assert kernel.run("'next'").ok().value == "'next'"


def test_a_handler_of_the_students_own_hears_interrupts_until_its_cell_ends(kernel: Kernel) -> None:
    kernel.run("import os, signal\nheard = []\ndef hear(*_): heard.append(1)").ok()
    kernel.run("signal.signal(signal.SIGINT, hear)\nos.kill(os.getpid(), signal.SIGINT)\nheard.append(2)").ok()
    assert kernel.evaluate("heard") == [1, 2]
    ends = "os.kill(os.getpid(), signal.SIGINT)\nsignal.pause()"
    result = kernel.run(f"assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n{ends}")
    assert result.error is not None
    assert result.error[0] == "KeyboardInterrupt"
