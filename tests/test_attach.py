"""Background cells that outlive their notebook kernel, and `%gpu_attach` in another kernel."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Callable, Iterator

import psutil
import pytest
from end_to_end import Cell, Gate, Kernel, Place, Service, background, speaking, wait_until

NONE = "No cell has run in the background\n"


def begun(kernel: Kernel, body: str) -> Cell:
    """A background cell that is running."""
    cell = background(kernel, f"print('begun')\n{body}")
    cell.wait_for_text("begun")
    return cell


def jobs(kernel: Kernel) -> list[str]:
    """The lines about cells of earlier kernels."""
    return [line for line in kernel.run("%gpu_jobs").ok().stdout.splitlines() if "%gpu_attach" in line]


def left(kernel: Kernel) -> list[str]:
    """The same, once there are any."""
    return wait_until(lambda: jobs(kernel), "the broker knows that the kernel has ended")


def wait_for_end(kernel: Kernel) -> None:
    wait_until(lambda: (lines := jobs(kernel)) and "running" not in lines[0], "the cell has ended")


def digits(line: str) -> str:
    return line.split("%gpu_attach ")[1].split()[0]


def notebook_kernel(kernel: Kernel) -> psutil.Process:
    return psutil.Process(kernel.evaluate("__import__('os').getpid()"))


@pytest.fixture(scope="module")
def calm(place: Place) -> Iterator[Service]:
    """A service that no test breaks. Sessions of its worker see gates."""
    service = Service.create()
    courses = service.place.folder / "courses.toml"
    courses.write_text("jobs_per_person = 4\n")
    service.start_broker(BATON_BROKER_COURSES_FILE=str(courses))
    service.start_worker(slots=4, BATON_WORKER_READABLE=str(place.signs))
    yield service
    left = service.close()
    assert not left, f"Processes left behind: {left}"


@pytest.fixture
def start(calm: Service, new_kernel: Callable[..., Kernel]) -> Callable[[], Kernel]:
    """Starts kernels of one person."""
    return lambda: calm.kernel(new_kernel)


@pytest.fixture
def away(service: Service, place: Place, new_kernel: Callable[..., Kernel]) -> Iterator[Callable[..., Kernel]]:
    """Kernels of a broker and a worker that the test can break. The worker's sessions see gates."""
    service.start_broker()
    service.start_worker(BATON_WORKER_READABLE=str(place.signs))
    return lambda **environment: service.kernel(new_kernel, **environment)


# ---- what arrives


def test_a_cell_goes_on_after_a_restart_and_the_next_kernel_gets_what_it_leaves(
    start: Callable[[], Kernel], gate: Gate
) -> None:
    kernel = start()
    kernel.run("values = [1]; alias = values; other = 'not given'").ok()
    body = f"{gate.closed()}values.append(2)\nnew = {{'same': values}}\nprint('end')\nlen(values)"
    begun(kernel, body)
    kernel.restart()
    (line,) = left(kernel)
    assert line.startswith("In[2] of ")
    assert ": running." in line
    gate.open()
    cell = kernel.run("%gpu_attach").ok()
    assert cell.value == "2"
    assert cell.stdout.startswith("begun\nend\nLoaded new, os, time, values of In[2] of ")
    assert kernel.evaluate("values, new['same'] is values, 'other' in dir()") == ([1, 2], True, False)
    assert kernel.run("%gpu_jobs").ok().stdout == NONE
    assert kernel.gpu("values.append(3)\nnew['same']").ok().value == "[1, 2, 3]"


def test_a_cell_that_has_ended_waits_for_another_kernel(start: Callable[[], Kernel], gate: Gate) -> None:
    first = start()
    first.run("import numpy as np; array = np.arange(100_000.0); view = array[10:20]").ok()
    begun(first, f"{gate.closed()}array += 1\nview *= 2\nresult = array.sum()")
    first.shutdown()
    gate.open()
    second = start()
    wait_for_end(second)
    assert ": done." in jobs(second)[0]
    second.run(f"%gpu_attach {digits(jobs(second)[0])}").ok()
    expected = "np.concatenate([np.arange(10) + 1.0, 2 * (np.arange(10, 20) + 1.0), np.arange(20, 100_000) + 1.0])"
    second.run("import numpy as np").ok()
    assert second.evaluate(
        f"bool((array == {expected}).all()), view.base is array or np.shares_memory(view, array)"
    ) == (
        True,
        True,
    )
    assert second.evaluate("float(result)") == float(second.evaluate("float(array.sum())"))


@pytest.mark.parametrize("victim", ["proxy", "kernel"])
def test_the_end_of_a_process_counts_as_a_restart(start: Callable[[], Kernel], gate: Gate, victim: str) -> None:
    first, second = start(), start()
    process = first.proxy if victim == "proxy" else notebook_kernel(first)
    begun(first, f"{gate.closed()}made = 1")
    process.kill()
    left(second)
    gate.open()
    second.run("%gpu_attach").ok()
    assert second.evaluate("made") == 1


def test_a_result_that_the_kernel_was_too_busy_to_take(start: Callable[[], Kernel], gate: Gate) -> None:
    busy, kernel = start(), start()
    process = notebook_kernel(busy)
    cell = begun(busy, f"{gate.closed()}made = 'made'\nprint('end')")
    busy.begin("import threading; print('busy'); threading.Event().wait()").wait_for_text("busy")
    gate.open()
    cell.wait_for_text("end")
    process.kill()
    left(kernel)
    assert kernel.run("%gpu_attach").ok().stdout.startswith("begun\nend\nLoaded made, os, time of In[1]")
    assert kernel.evaluate("made") == "made"


def test_the_value_of_a_call_in_the_background(start: Callable[[], Kernel], gate: Gate) -> None:
    kernel = start()
    kernel.run("from baton import gpu").ok()
    body = textwrap.indent(f"print('begun')\n{gate.closed()}return items * 2", "    ")
    kernel.run(f"@gpu\ndef work(items):\n{body}").ok()
    speaking(kernel, "job = work.background([1, 2])").wait_for_text("begun")
    kernel.restart()
    left(kernel)
    gate.open()
    kernel.run("answer = %gpu_attach").ok()
    assert kernel.evaluate("answer") == [1, 2, 1, 2]


# ---- what does not


def test_an_error_is_raised_and_what_was_changed_before_it_is_there(start: Callable[[], Kernel], gate: Gate) -> None:
    kernel = start()
    kernel.run("values = []").ok()
    begun(kernel, f"{gate.closed()}values.append(1)\n1 / 0")
    kernel.restart()
    left(kernel)
    gate.open()
    cell = kernel.run("%gpu_attach")
    assert cell.reply["ename"] == "ZeroDivisionError"
    assert "1 / 0" in cell.plain_traceback
    assert kernel.evaluate("values") == [1]


def test_what_cannot_travel_is_named(start: Callable[[], Kernel], gate: Gate) -> None:
    kernel = start()
    begun(kernel, f"{gate.closed()}good = [1]\nbad = (n for n in good)\nbad")
    kernel.restart()
    left(kernel)
    gate.open()
    cell = kernel.run("%gpu_attach").ok()
    assert "Not included: bad, which" in cell.stdout
    assert "Not included: the result, which" in cell.stdout
    assert kernel.evaluate("good, 'bad' in dir()") == ([1], False)


def test_a_name_that_only_the_old_kernel_has(start: Callable[[], Kernel], gate: Gate) -> None:
    kernel = start()
    kernel.run("hidden = 5; done = []").ok()
    begun(kernel, f"{gate.closed()}done.append(1)\neval('hid' + 'den')")
    kernel.restart()
    left(kernel)
    gate.open()
    cell = kernel.run("%gpu_attach")
    assert "'hidden' is not here: the notebook kernel that had it has ended" in cell.plain_traceback
    assert kernel.evaluate("done") == [1]


def test_a_cell_that_has_not_begun_ends_with_its_kernel(start: Callable[[], Kernel], gate: Gate) -> None:
    kernel = start()
    kernel.run("values = []").ok()
    begun(kernel, f"{gate.closed()}values.append(1)")
    background(kernel, "values.append(2)", "second")
    kernel.restart()
    wait_until(lambda: len(jobs(kernel)) == 1, "only the cell that had begun is left")
    gate.open()
    kernel.run("%gpu_attach").ok()
    assert kernel.evaluate("values") == [1]


# ---- the student decides


def test_waiting_can_be_interrupted_and_the_cell_goes_on(start: Callable[[], Kernel], gate: Gate) -> None:
    kernel = start()
    begun(kernel, f"{gate.closed()}made = 1")
    kernel.restart()
    left(kernel)
    cell = kernel.begin("%gpu_attach")
    cell.wait_for_text("begun")
    kernel.interrupt()
    result = cell.finish()
    assert result.reply["ename"] == "KeyboardInterrupt"
    assert "Your variables are as they were, and %gpu_jobs still lists the job" in result.plain_traceback
    gate.open()
    kernel.run("%gpu_attach").ok()
    assert kernel.evaluate("made") == 1


def test_cells_are_told_apart_and_one_can_be_cancelled(start: Callable[[], Kernel], gate: Gate) -> None:
    first, second = start(), start()
    for number, kernel in enumerate((first, second)):
        begun(kernel, f"{gate.closed()}made = {number}")
    first.restart()
    second.shutdown()
    wait_until(lambda: len(jobs(first)) == 2, "the broker knows that both kernels have ended")
    lines = jobs(first)
    refused = first.run("%gpu_attach")
    assert refused.reply["ename"] == "UsageError"
    assert all(line in refused.stderr for line in lines)
    assert "Cancelled In[1]" in first.run(f"%gpu_jobs --cancel {digits(lines[0])}").ok().stdout
    assert jobs(first) == lines[1:]
    gate.open()
    first.run("%gpu_attach").ok()
    assert first.evaluate("made") == 1
    assert jobs(first) == []
    assert first.run("%gpu_attach").reply["ename"] == "UsageError"


def test_an_attached_cell_can_be_undone(start: Callable[[], Kernel], gate: Gate) -> None:
    kernel = start()
    begun(kernel, f"{gate.closed()}made = 'on the GPU'")
    kernel.restart()
    left(kernel)
    kernel.run("made = 'here'").ok()
    gate.open()
    assert "Replaced: made" in kernel.run("%gpu_attach").ok().stdout
    kernel.run("%gpu_undo").ok()
    assert kernel.evaluate("made") == "here"


# ---- faults


def test_the_broker_is_killed_while_nobody_waits(service: Service, away: Callable[..., Kernel], gate: Gate) -> None:
    kernel = away()
    begun(kernel, f"{gate.closed()}print('end')\nmade = list(range(5))")
    kernel.restart()
    left(kernel)
    for _ in range(2):
        service.kill("broker")
        service.start_broker()
    gate.open()
    wait_for_end(kernel)
    service.kill("broker")
    service.start_broker()
    cell = kernel.run("%gpu_attach").ok()
    assert cell.stdout.startswith("begun\nend\n")
    assert kernel.evaluate("made") == [0, 1, 2, 3, 4]


def test_the_broker_is_killed_while_a_kernel_waits(service: Service, away: Callable[..., Kernel], gate: Gate) -> None:
    kernel = away()
    begun(kernel, f"{gate.closed()}print('end')\nmade = 1")
    kernel.restart()
    left(kernel)
    cell = kernel.begin("%gpu_attach")
    cell.wait_for_text("begun")
    for _ in range(2):
        service.kill("broker")
        service.start_broker()
    gate.open()
    assert cell.finish().ok().stdout.startswith("begun\nend\nLoaded made, os, time of In[1]")
    assert jobs(kernel) == []


def test_a_worker_that_dies_takes_the_variables_along(
    service: Service, away: Callable[..., Kernel], gate: Gate
) -> None:
    kernel = away()
    begun(kernel, gate.closed())
    kernel.restart()
    left(kernel)
    service.kill("worker-0")
    wait_for_end(kernel)
    cell = kernel.run("%gpu_attach")
    assert cell.reply["ename"] == "GpuServiceError"
    assert "left no variables" in cell.plain_traceback
    assert "worker-0 was lost" in cell.plain_traceback
    assert "begun" in cell.stdout
    assert jobs(kernel) == []


def test_a_worker_that_leaves_saves_what_it_has_first(
    service: Service, away: Callable[..., Kernel], gate: Gate
) -> None:
    kernel = away()
    begun(kernel, f"{gate.closed()}made = 1")
    kernel.restart()
    left(kernel)
    service.process("worker-0").send_signal(signal.SIGTERM)
    gate.open()
    assert service.wait("worker-0") == 0
    kernel.run("%gpu_attach").ok()
    assert kernel.evaluate("made") == 1


@pytest.mark.parametrize("transport", ["auto", "http"])
def test_files_that_it_wrote_are_brought_too(
    service: Service, place: Place, new_kernel: Callable[..., Kernel], gate: Gate, transport: str
) -> None:
    service.start_broker()
    gates = str(place.signs)
    service.start_worker(BATON_WORKER_READABLE=gates, BATON_TRANSPORT=transport, BATON_WORKER_FILES="mirror")
    folder = service.place.work
    (folder / "early.txt").write_text("early")
    (folder / "late.txt").write_text("late")
    kernel = service.kernel(new_kernel, BATON_TRANSPORT=transport)
    body = f"""
early = open('early.txt').read()
{gate.closed()}
open('made.txt', 'w').write(early + ' made')
try:
    late = open('la' + 'te.txt').read()  # a file that the code names comes before it runs
except OSError as error:
    late = str(error)
"""
    begun(kernel, body)
    kernel.restart()
    left(kernel)
    gate.open()
    wait_for_end(kernel)
    assert not (folder / "made.txt").exists()
    kernel.run("%gpu_attach").ok()
    assert (folder / "made.txt").read_text() == "early made"
    assert "late.txt" in kernel.evaluate("late")


def test_each_kind_of_job_is_listed_as_what_it_is(service: Service, away: Callable[..., Kernel]) -> None:
    kernel = away()
    kernel.run("from baton import gpu").ok()
    kernel.run("@gpu\ndef work():\n    return 1").ok()
    kernel.gpu("1").ok()
    kernel.run("with gpu:\n    x = 1").ok()
    kernel.run("work()").ok()
    background(kernel, "2")
    kernel.run("job.result()").ok()
    assert [job["kind"] for job in service.jobs()] == ["background", "call", "block", "cell"]
