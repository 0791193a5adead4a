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
    assert baton.value(f"type(_{cell.reply['execution_count']}).__name__") == "'StandIn'"
    cell = baton.run("%%gpu\nother.append(len(held)); held = [3]")
    assert cell.reply["status"] == "ok", cell.traceback
    assert "warning" not in cell.text("stderr")
    assert baton.value("other[2] > 0, held, first") == "(True, [3], [[2]])"


def test_an_earlier_value_of_a_cell_that_shows_all(baton: Baton) -> None:
    make, _ = MADE["nested too deeply"]
    baton.run("%config InteractiveShell.ast_node_interactivity = 'all'")
    cell = baton.run(f"%%gpu\n{make}\nnew = 7\nheld\ndel held\nnew")
    assert cell.reply["status"] == "ok", cell.traceback
    assert "warning: The result " in cell.text("stderr")
    assert baton.value("new, _, type(__).__name__") == "(7, 7, 'StandIn')"


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
    assert baton.run("%%gpu\neval('le' + 'n(held)')").error.startswith("StandInError: 'held")


NESTED = "x = []\nfor n in range(300_000): x = [x]\n"


def test_an_object_that_the_notebook_no_longer_uses(baton: Baton) -> None:
    """It was sent, has changed since, and only a deleted name referred to it."""
    baton.run("held = [1]; other = [1]")
    assert baton.run("%%gpu\nlen(held)").result == "1"
    baton.run(f"{NESTED}held.append(x); del x, held")
    for n in (2, 3):
        cell = baton.run(f"%%gpu\nother.append({n}); other")
        assert cell.reply["status"] == "ok", cell.traceback
    assert baton.value("other") == "[1, 2, 3]"


def test_a_part_of_the_surroundings(baton: Baton) -> None:
    baton.run(f"{NESTED}def note(*_, held=x): pass\nget_ipython().events.register('post_execute', note)\ndel x, note")
    cell = baton.run("%%gpu\n1 + 1")
    assert cell.result == "2", cell.traceback
    lines = cell.text("stderr")
    assert "could not be updated on the GPU machine: what the notebook has holds " in lines, lines


def test_an_argument_of_a_call(baton: Baton) -> None:
    make, reason = MADE["a class that cannot be hashed"]
    baton.run(f"from baton import gpu\n{make}\n@gpu\ndef f(numbers): return len(numbers)")
    assert baton.run("f(held)").error == f"StateRefused: 'numbers' {reason} and cannot move to the GPU machine"
    assert baton.run("f([1])").result == "1"


def test_what_is_saved(baton: Baton) -> None:
    """Asked without a broker."""
    for make, reason in MADE.values():
        baton.run(f"other = [1]\n{make}")
        look = "from baton_shim.state.whole import whole\nfrom baton_shim.state import Table\n"
        baton.run(f"{look}def saved(extra): return whole(lambda: Table(globals()), ['other', 'held'], extra)")
        assert baton.value("saved(lambda names: {}).names") == "['other']"
        assert reason in baton.value("saved(lambda names: {}).left['held']")
        assert baton.value("saved(lambda names: {'figures': held}).names") == "['other']"
        baton.run("lost = saved(lambda names: {'figures': held}).losses[0]")
        assert reason.removeprefix("holds 'held[100]', which ") in baton.value("lost")
