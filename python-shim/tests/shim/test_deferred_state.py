"""Deferred state of a cell: when it arrives, and what happens if it never does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Baton, Cell

WAITING = re.compile(r"^Waiting for .* of the results of .* from the GPU machine\n")
"""What a cell says that has waited for more than a second."""
MAKE = "import numpy as np\nx = np.zeros(1000)\nkept = [x]\ny = x[10:20]"


@pytest.fixture
def baton(baton_away: Baton) -> Baton:
    baton_away.run(MAKE)
    return baton_away


def told(cell: Cell) -> str:
    return WAITING.sub("", cell.text("stderr"))


def test_the_next_gpu_cell_does_not_wait(baton: Baton) -> None:
    baton.follow.clear()
    for number in range(5):
        cell = baton.run(f"%%gpu\nx += 1; print(x[0], {number})")
        assert cell.text() == f"{number + 1}.0 {number}\n"
    before = baton.mover.bytes_moved
    assert (
        "Not here yet: 7.8 KiB of the results of In[2] and In[3] and In[4] and In[5] and In[6]"
        in baton.run("%gpu_status").text()
    )
    baton.follow.set()
    assert baton.run("float(x.sum())").result == "5000.0"
    assert baton.mover.bytes_moved - before == 8000
    assert baton.followed_up.wait(100)
    assert baton.follow_ups == 1
    assert "Not here yet" not in baton.run("%gpu_status").text()


def test_a_lost_session_takes_the_cells_back(baton: Baton) -> None:
    baton.run("import random; random.seed(1); first = random.getstate(); d = {'a': 1}")
    baton.follow.clear()
    baton.run("%%gpu\nx += 1; d['a'] = 2; new = 3; random.random()\nx")
    baton.run("%%gpu\nx += 1; d['b'] = x; del new; del y")
    baton.lose_session()
    cell = baton.run("print('ran')")
    assert cell.text() == "ran\n"
    assert told(cell) == (
        "warning: The results of In[3] and In[4] are lost: The session died\n"
        "Your variables d, new, x, y are as they were before In[3]. Run In[3] and In[4] again\n"
    )
    look = "(x.sum(), d, 'new' in globals(), 3 in Out, y.base is x, random.getstate() == first)"
    assert baton.run(look).result == "(np.float64(0.0), {'a': 1}, False, False, True, True)"
    baton.follow.set()
    baton.run("%%gpu\nx += 1")
    assert baton.run("float(y.sum()), d").result == "(10.0, {'a': 1})"
    baton.follow.clear()
    baton.run("%%gpu\nx += 1")
    baton.lose_session()
    cell = baton.run("%%gpu\nprint('ran')")
    assert cell.text() == "ran\n"
    assert told(cell).startswith("warning: The results of In[9] are lost: The session died\nYour variables ")
    assert baton.run("%%gpu\nfloat(x.sum()), d").result == "(1000.0, {'a': 1})"


def test_a_cell_that_fails_leaves_memory_behind_as_any_other(baton: Baton) -> None:
    cell = baton.run("%%gpu\nx += 1\n1 / 0", stop_on_error=False)
    assert cell.error.startswith("ZeroDivisionError")
    assert baton.run("float(x.sum())").result == "1000.0"


def test_a_cell_that_returns_nothing_waits_first(baton: Baton) -> None:
    baton.run("%%gpu\nx += 1")
    assert baton.run("%%gpu --no-return\nx += 5\nprint(x[0])").text() == "6.0\n"
    assert baton.run("float(x.sum())").result == "1000.0"


def test_what_is_deleted_while_it_is_away_does_not_come(baton: Baton) -> None:
    baton.follow.clear()
    baton.run("%%gpu\nbig = np.ones(100_000); x += 1")
    baton.run("%%gpu\ndel big")
    before = baton.mover.bytes_moved
    baton.follow.set()
    assert baton.run("'big' in globals(), float(x.sum())").result == "(False, 1000.0)"
    assert baton.mover.bytes_moved - before == 8000


def test_a_reset_brings_everything_first_unless_it_shall_not(baton: Baton) -> None:
    baton.run("%%gpu\nx += 1")
    baton.run("%gpu_reset")
    assert baton.run("float(x.sum())").result == "1000.0"
    baton.run("%%gpu\nx += 1")
    assert baton.run("float(x.sum())").result == "2000.0"
    baton.follow.clear()
    baton.run("%%gpu\nx += 1")
    cell = baton.run("%gpu_reset --lose")
    assert cell.text("stderr").startswith(
        "warning: The results of In[7] are lost: They were given up before they had arrived"
    )
    assert baton.run("float(x.sum())").result == "2000.0"


def test_code_beside_the_cells_has_everything_with_the_cell(baton: Baton) -> None:
    baton.run(
        "import threading; end = threading.Event(); t = threading.Thread(target=end.wait, daemon=True); t.start()"
    )
    baton.run("%%gpu --drop end,t\nx += 1")
    assert "Not here yet" not in baton.run("%gpu_status").text()
    baton.run("end.set(); t.join()")
    baton.follow.clear()
    baton.run("%%gpu\nx += 1")
    assert "Not here yet" in baton.run("%gpu_status").text()


def test_memory_that_a_class_reads_while_it_is_rebuilt_comes_with_the_cell(baton: Baton) -> None:
    baton.run(
        "class Summed:\n"
        "    def __init__(self, a): self.a = a\n"
        "    def __getstate__(self): return {'a': self.a}\n"
        "    def __setstate__(self, state): self.a = state['a']; self.sum = float(self.a.sum())"
    )
    baton.run("%%gpu\ns = Summed(np.ones(1000)); x += 1")
    assert baton.run("s.sum, float(x.sum())").result == "(1000.0, 1000.0)"


def test_memory_on_the_gpu_that_cells_may_only_have_read(baton_away: Baton) -> None:
    baton = baton_away
    baton.run("%%gpu\nimport torch; x = torch.ones(1000, device='cuda')")
    baton.run("pass")
    baton.follow.clear()
    baton.run("%%gpu\nx[0] = 2")
    baton.lose_session()
    assert told(baton.run("pass")) == (
        "warning: What In[3] may have changed on the GPU is lost: The session died\n"
        "Your variables x are as they were before In[3]. If In[3] changed them, run In[3] again\n"
    )


def test_a_background_cell_that_cannot_get_a_new_session_yet_does_not_count_as_done(baton: Baton) -> None:
    baton.run("x = 1")
    baton.run("%%gpu\nx += 1")
    baton.run(
        "from unittest.mock import patch\n"
        "from baton_shim.notebook.call import Call\n"
        "from baton_shim.notebook.deferred import Deferred\n"
        "real = Call._state_wanted\n"
        "def state_wanted(call):\n"
        "    with patch.object(Deferred, 'due', True):  # some of x has not arrived\n"
        "        real(call)\n"
        "Call._state_wanted = state_wanted"
    )
    baton.lose_session()
    assert baton.run("%%gpu --background job\nx += 1").reply["status"] == "ok"
    assert "This cell did not start: its session has ended" in baton.run("job.result()").error
    assert baton.value("x, job.status") == "(2, 'failed')"
