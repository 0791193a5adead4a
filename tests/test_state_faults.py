"""Processes that are killed exactly while a session applies state: nothing is lost, and the next cell works.

An object of the student's reports where it is rebuilt, and waits there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from end_to_end import Kernel, Service, wait_until
from end_to_end.results import Result

WAITING = """
class Waiting:
    def __init__(self, folder):
        self.folder, self.home = folder, os.getpid()
    def __setstate__(self, state):
        vars(self).update(state)
        said = pathlib.Path(self.folder, "said")
        if os.getpid() == self.home or said.exists():
            return
        written = said.with_name("written")
        written.write_text(f"{os.getpid()} {os.environ['BATON_SESSION']}")
        written.rename(said)
        open(pathlib.Path(self.folder, "never")).read()
"""
"""Where it is rebuilt for the first time, it waits forever."""


class Notebook:
    def __init__(self, kernel: Kernel, folder: Path) -> None:
        self.kernel, self._said = kernel, folder / "said"
        os.mkfifo(folder / "never")
        kernel.run(f"import os, pathlib\nvalues = [1]\n{WAITING}\nwaiting = Waiting({str(folder)!r})").ok()

    def session_in_between(self) -> psutil.Process:
        """A session that has applied a part of its state."""
        wait_until(self._said.exists, "a session takes in what came")
        return psutil.Process(self.kernel.place.session_pid(self._said.read_text()))

    def check_lost(self, result: Result, values: list[int]) -> None:
        """The message says that the variables are safe, they are, and a new session is created."""
        assert result.error is not None, result.outputs
        assert result.error[0] == "SessionDied"
        assert "Your variables are as they were before" in result.plain_traceback
        assert self.kernel.evaluate("values") == values
        self.kernel.gpu("values.append(waiting.home)").ok()
        assert self.kernel.evaluate("values[:-1], values[-1] == os.getpid()") == (values, True)


@pytest.fixture
def running(service: Service) -> Service:
    service.start_broker()
    service.start_worker()
    return service


@pytest.fixture(params=["auto", "http"])
def notebook(running: Service, new_kernel: Callable[..., Kernel], request: pytest.FixtureRequest) -> Notebook:
    return Notebook(running.kernel(new_kernel, BATON_TRANSPORT=request.param), running.place.work)


def test_a_session_that_takes_in_its_first_state(notebook: Notebook) -> None:
    cell = notebook.kernel.begin("%%gpu\nvalues.append('lost')\nwaiting")
    notebook.session_in_between().kill()
    notebook.check_lost(cell.finish(), [1])


def test_a_session_that_holds_something(notebook: Notebook) -> None:
    notebook.kernel.gpu("values.append(2)").ok()
    notebook.kernel.run("values.append(3)").ok()
    cell = notebook.kernel.begin("%%gpu\nvalues.append('lost')\nwaiting")
    notebook.session_in_between().kill()
    notebook.check_lost(cell.finish(), [1, 2, 3])


def test_a_session_whose_cell_looks_up_more(notebook: Notebook) -> None:
    cell = notebook.kernel.begin("%%gpu\nvalues.append('lost')\neval('wait' + 'ing')")
    notebook.session_in_between().kill()
    notebook.check_lost(cell.finish(), [1])


def test_a_worker_whose_session_takes_in_state(running: Service, notebook: Notebook) -> None:
    """The broker has stored that the cell starts, so it runs nowhere else, although it has not begun."""
    notebook.kernel.gpu("values.append(2)").ok()
    cell = notebook.kernel.begin("%%gpu\nvalues.append(3)\nwaiting.home")
    session = notebook.session_in_between()
    running.kill("worker-0")
    wait_until(lambda: not session.is_running(), "the dead worker's session ended")
    lost = cell.finish()
    assert "Your variables are as they were before" in lost.plain_traceback
    assert notebook.kernel.evaluate("values") == [1, 2]
    running.start_worker()
    assert notebook.kernel.gpu("values.append(3)\nvalues").ok().value == "[1, 2, 3]"


def test_a_worker_whose_running_cell_looks_up_more(running: Service, notebook: Notebook) -> None:
    cell = notebook.kernel.begin("%%gpu\nvalues.append('lost')\neval('wait' + 'ing')")
    notebook.session_in_between()
    running.kill("worker-0")
    lost = cell.finish()
    assert "Your variables are as they were before" in lost.plain_traceback
    assert notebook.kernel.evaluate("values") == [1]
    running.start_worker()
    assert notebook.kernel.gpu("values.append(2)\nvalues").ok().value == "[1, 2]"
