"""Values that cannot be packed at all, not even with stand-ins for their parts: only they stay where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Baton

MADE = {
    "too many failures": (
        "class Bad:\n    def __reduce__(self): return object.__new__, (Bad,), None, None, None, 5\n"
        "held = [Bad() for _ in range(150)]",
        "holds 'held[100]', which is a 'Bad' object that cannot be pickled (sixth element of",
    ),
    "nested too deeply": (
        "held = []\nfor n in range(300_000): held = [held]",
        "holds objects that are nested too deeply",
    ),
    "a class that cannot be hashed": (
        "class Meta(type):\n    def __eq__(self, other): return self is other\n"
        "class Bad(metaclass=Meta): pass\nheld = [Bad()]\ndel Bad",
        "cannot be packed (TypeError: unhashable type: 'Meta')",
    ),
}
SETUP = "import logging\nother, held = [1], [2]\nfirst = [held]"


@pytest.mark.parametrize("case", MADE)
def test_what_a_cell_made_stays_in_the_session(baton: Baton, case: str) -> None:
    make, reason = MADE[case]
    baton.run(SETUP)
    cell = baton.run(f"%%gpu\n{make}\nother.append(len(first)); logging.disable(5)\nnew = 7\nheld")
    assert cell.reply["status"] == "ok", cell.traceback
    lines = cell.text("stderr")
    assert lines.count("warning: ") == 2 and f"warning: 'held' {reason}" in lines, lines
    assert "In the notebook it is as before the cell; everything else has returned" in lines
    assert "warning: The result " in lines
    assert baton.value("other, new, held, first, logging.root.manager.disable") == "([1, 1], 7, [2], [[2]], 5)"
    assert baton.value(f"type(_{cell.reply['execution_count']}).__name__") == "'Stayed'"
    cell = baton.run("%%gpu\nother.append(len(held)); held = [3]")
    assert cell.reply["status"] == "ok", cell.traceback
    assert "warning" not in cell.text("stderr")
    assert baton.value("other[2] > 0, held, first") == "(True, [3], [[2]])"


def test_what_a_cell_put_into_an_object_of_the_notebook(baton: Baton) -> None:
    """The object keeps its contents here until a cell can return it again."""
    make, _ = MADE["too many failures"]
    baton.run(SETUP)
    cell = baton.run(f"%%gpu\nbad = held\n{make}\nbad += held; held = bad; del bad\nother.append(len(first[0]))")
    assert "warning: 'first' holds 'first[0][" in cell.text("stderr")
    assert "warning: 'held' holds 'held[" in cell.text("stderr")
    assert baton.value("other, held, first") == "([1, 151], [2], [[2]])"
    assert baton.run("%%gpu\ndel held[2:], first; print(len(held))").text() == "2\n"
    assert baton.value("'first' in globals()") == "False"


@pytest.mark.parametrize("case", MADE)
def test_a_cell_that_names_it_is_refused_by_name(baton: Baton, case: str) -> None:
    make, reason = MADE[case]
    baton.run(f"other = [1]\n{make}")
    cell = baton.run("%%gpu\nother.append(len(held))")
    assert cell.error.startswith("StateRefused: 'held' ") or cell.error.startswith("StateRefused: 'held[100]' is a ")
    assert reason.removeprefix("holds 'held[100]', which ") in cell.error
    assert baton.run("%%gpu\nother.append(2)").reply["status"] == "ok"
    assert baton.run("%%gpu\nif not other: held\nother.append(eval('len(other)'))").reply["status"] == "ok"
    assert baton.run("%%gpu\neval('le' + 'n(held)')").error.startswith("StayedError: 'held")
