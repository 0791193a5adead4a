"""What surrounds a cell is one transaction with its variables: all of it counts, or nothing does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Baton

SETUP = """
import logging, matplotlib
matplotlib.use('agg')
import matplotlib.pyplot as plt
from IPython.core.magic import register_line_magic
class Lines(logging.Handler):
    def emit(self, record): pass
log = logging.getLogger('course')
def add(number):
    register_line_magic(f'greet{number}')(lambda line: number)
    log.addHandler(Lines(number))
    plt.figure(number)
def remove(number):
    del get_ipython().magics_manager.magics['line'][f'greet{number}']
    for one in log.handlers: log.removeHandler(one) if one.level == number else None
    plt.close(number)
unsendable = (n for n in ())
"""
LOOK = (
    "[name for name in get_ipython().magics_manager.magics['line'] if name.startswith('greet')], "
    "[one.level for one in log.handlers], plt.get_fignums()"
)


def held(*numbers: int) -> str:
    return str(([f"greet{number}" for number in numbers], list(numbers), list(numbers)))


def test_what_was_deleted_before_a_refused_cell_stays_deleted(baton: Baton) -> None:
    baton.run(SETUP)
    baton.run("add(1)")
    assert baton.run(f"%%gpu\n{LOOK}").result == held(1)
    baton.run("remove(1)")
    assert baton.run("%%gpu\nlist(unsendable)").error.startswith("StateRefused")
    assert baton.run(f"%%gpu\n{LOOK}").result == held()
    assert baton.value(LOOK) == held()


def test_what_lost_cells_hung_is_taken_back(baton_away: Baton) -> None:
    baton = baton_away
    baton.run(SETUP + "import numpy as np; x = np.zeros(1000)")
    baton.run("add(1)")
    baton.follow.clear()
    baton.run("%%gpu\nx += 1; add(2)")
    baton.run("%%gpu\nx += 1; add(3); remove(1)")
    baton.lose_session()
    assert "are lost" in baton.run("pass").text("stderr")
    assert baton.value(LOOK) == held(1)
    assert baton.run(f"%%gpu\n{LOOK}").result == held(1)
