"""A session with objects that no other can have: its cells wait for it, and its end is reported at once, with names."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from end_to_end import Kernel, Service, wait_until
from end_to_end.kernel import Cell

NewKernel = Callable[..., Kernel]

MAKE = "numbers = (n * n for n in range(5))\nopen_file = open('/dev/null')\nfirst = next(numbers)\nkept = [1, 2]"
LOST = (
    "warning: The session on worker-0 ended. Lost with it: "
    "'numbers' (a generator), 'open_file' (an open file ('/dev/null'))\n"
    "Your other variables are safe. To have them again, run the cells that made them\n"
)


def make(kernel: Kernel) -> Cell:
    cell = kernel.begin(f"%%gpu\n{MAKE}")
    cell.speaks_after_idle = True
    cell.finish().ok()
    return cell


def occupy(kernel: Kernel, go_on: Path) -> Cell:
    """Occupies a worker until the file exists."""
    cell = kernel.begin(
        "%%gpu\nimport pathlib, time\nprint('occupied', flush=True)\n"
        f"while not pathlib.Path({str(go_on)!r}).exists():\n    time.sleep(0.01)"
    )
    cell.wait_for_text("occupied")
    return cell


def test_a_cell_waits_for_the_session_with_its_generator(service: Service, new_kernel: NewKernel) -> None:
    service.start_broker()
    service.start_worker(slots=1)
    mine, other = service.kernel(new_kernel), service.kernel(new_kernel)
    make(mine)
    go_on = service.place.work / "go-on"
    occupying = occupy(other, go_on)
    service.start_worker(slots=1)
    waiting = mine.begin("%%gpu\nnext(numbers)")
    wait_until(lambda: "its session on worker-0 holds objects that cannot move" in service.answers("/"), "it waits")
    go_on.touch()
    occupying.finish().ok()
    assert waiting.finish().ok().value == "1"


def refused(service: Service, mine: Kernel, other: Kernel) -> None:
    error = mine.run("%%gpu --gpu h900\nkept.append(next(numbers))").error
    assert error is not None
    assert "h900" in error[1]


def stopped(service: Service, mine: Kernel, other: Kernel) -> None:
    go_on = service.place.work / "go-on"
    occupying = occupy(other, go_on)
    waiting = mine.begin("%%gpu\nkept.append(next(numbers))")
    waiting.wait_for(lambda result: any("Waiting" in notice for notice in result.notices), "it waits")
    mine.interrupt()
    error = waiting.finish().error
    assert error is not None
    assert error[0] == "KeyboardInterrupt"
    go_on.touch()
    occupying.finish().ok()


@pytest.mark.parametrize("end", [refused, stopped])
def test_a_cell_that_never_starts_leaves_the_session_as_it_is(
    service: Service, new_kernel: NewKernel, end: Callable[[Service, Kernel, Kernel], None]
) -> None:
    service.start_broker()
    service.start_worker(slots=1)
    mine, other = service.kernel(new_kernel), service.kernel(new_kernel)
    make(mine)
    session = mine.session_pid
    mine.run("import decimal; decimal.getcontext().prec = 5; kept.append(3); other = kept").ok()
    end(service, mine, other)
    result = mine.gpu("kept.append(next(numbers))\nkept, other is kept, decimal.getcontext().prec").ok()
    assert (result.value, result.stderr) == ("([1, 2, 3, 1], True, 5)", "")
    assert mine.session_pid == session


def test_what_is_used_up_is_not_waited_for(service: Service, new_kernel: NewKernel) -> None:
    service.start_broker()
    service.start_worker(slots=1)
    mine, other = service.kernel(new_kernel), service.kernel(new_kernel)
    make(mine)
    mine.gpu("kept += numbers\nopen_file.close()").ok()
    occupying = occupy(other, service.place.work / "never")
    service.start_worker(slots=1)
    assert mine.gpu("print(kept)").ok().stdout == "[1, 2, 1, 4, 9, 16]\n"
    occupying.kernel.interrupt()
    occupying.finish()


def idle_for_long(service: Service) -> None:
    """The worker ends the session by itself."""


def asked_to_stop(service: Service) -> None:
    service.process("worker-0").send_signal(signal.SIGTERM)


def killed(service: Service) -> None:
    wait_until(lambda: '"warm_sessions":1' in service.answers("/v1/workers"), "the broker knows of the session")
    service.kill("worker-0")


@pytest.mark.parametrize("end", [idle_for_long, asked_to_stop, killed])
def test_its_end_is_told_at_once_and_by_name(
    service: Service, new_kernel: NewKernel, end: Callable[[Service], None]
) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_SESSION_IDLE="1s" if end is idle_for_long else "1h")
    kernel = service.kernel(new_kernel)
    cell = make(kernel)
    end(service)
    cell.wait_for(lambda result: result.stderr == LOST, "the notebook is told")
    used = kernel.run("next(numbers)").error
    assert used is not None
    assert "'numbers' is a generator and ended with the session on worker-0" in used[1]
    refused = kernel.gpu("next(numbers)").error
    assert refused is not None
    assert "'numbers' is not here: " in refused[1]
    if end is not idle_for_long:
        if end is asked_to_stop:
            service.wait("worker-0")
        service.start_worker()
    again = kernel.gpu("kept.append(first)\nkept").ok()
    assert (again.value, again.stderr) == ("[1, 2, 0]", "")


def test_the_end_of_a_session_without_such_things_is_nobodys_business(service: Service, new_kernel: NewKernel) -> None:
    service.start_broker()
    service.start_worker()
    kernel = service.kernel(new_kernel)
    before = kernel.session_pid
    make(kernel)
    kernel.gpu("del numbers, open_file").ok()
    kernel.gpu("pass").ok()
    kernel.kill_session()
    result = kernel.gpu("kept").ok()
    assert (result.value, result.stderr) == ("[1, 2]", "")
    assert kernel.session_pid != before


def test_giving_up_the_session_names_what_goes_with_it(kernel: Kernel) -> None:
    kernel.gpu(MAKE).ok()
    said = kernel.run("%gpu_reset").ok()
    assert said.stderr.startswith("warning: Your session ended. Lost with it: 'numbers' (a generator), 'open_file'")
    assert kernel.run("%gpu_reset").ok().stderr == ""
