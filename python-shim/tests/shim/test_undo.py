"""`%gpu_undo`: the notebook is as before the last `%%gpu` cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Baton

MAKE = "import numpy as np\nx = np.zeros(3000)\ny = x[10:20]\nrows = [1]; same = rows; text = 'old'; gone = 1"
CHANGE = (
    "%%gpu\nx[15] = 1; rows.append(2); text = 'new'; del gone; made = rows\nnp.set_printoptions(precision=3)\nlen(rows)"
)
LOOK = (
    "(x.sum(), y.sum(), y.base is x, rows, same is rows, text, 'gone' in globals(), 'made' in globals(), "
    "np.get_printoptions()['precision'], sorted(Out))"
)


def test_a_cell_is_undone(baton: Baton) -> None:
    baton.run(MAKE)
    before = baton.value(LOOK)
    baton.run(CHANGE)
    assert baton.value(LOOK) != before
    assert baton.run("%gpu_undo --list").text().startswith("In[2]: gone, made, rows, same, text, x")
    assert baton.run("%gpu_undo").text() == (
        "Undone: In[2]. gone, made, rows, same, text, x are as before. The next %%gpu cell starts a new session\n"
    )
    assert baton.value(LOOK) == before
    assert baton.run("%%gpu\nfloat(x.sum()), rows, text, gone, np.get_printoptions()['precision']").result == (
        "(0.0, [1], 'old', 1, 8)"
    )
    assert baton.run("%gpu_undo").text().startswith("Undone: In[5]. The next")
    assert baton.run("%gpu_undo").text("stderr").startswith("UsageError: There is nothing to undo")


def test_variables_of_the_environment_are_undone(baton: Baton) -> None:
    baton.run("import os\nos.environ['COURSE'] = '1'")
    baton.run("%%gpu\nos.environ |= {'COURSE': '2', 'WEEK': '7'}")
    look = "[os.environ.get(name) for name in ('COURSE', 'WEEK')]"
    assert baton.value(look) == "['2', '7']"
    baton.run("%gpu_undo")
    assert baton.value(look) == "['1', None]"
    assert baton.run(f"%%gpu\n{look}").result == "['1', None]"


def test_the_last_values_are_forgotten_and_then_known_again(baton: Baton) -> None:
    assert baton.run("'first'").result == "'first'"
    baton.run("%%gpu\n'undone'")
    baton.run("'second'")
    baton.run("%gpu_undo")
    assert baton.run("_, __, ___").result == "('second', '', 'first')"
    assert baton.run("len(_), __").result == "(3, 'second')"


def test_several_cells_and_blocks(baton: Baton) -> None:
    baton.run(MAKE + "\nfrom baton import gpu")
    baton.run("%%gpu\nx += 1; rows.append(2)")
    baton.run("%%gpu\nx += 1; rows.append(3)\n1 / 0")
    baton.run("def f():\n    with gpu:\n        x[0] = 7\n        rows.append(4)\nf()")
    assert "the block of In[4]" in baton.run("%gpu_undo --list").text()
    states = []
    for _ in range(3):
        baton.run("%gpu_undo")
        states.append(baton.value("(float(x.sum()), float(x[0]), rows)"))
    assert states == ["(6000.0, 2.0, [1, 2, 3])", "(3000.0, 1.0, [1, 2])", "(0.0, 0.0, [1])"]
    assert baton.run("%%gpu\nx += 1\nfloat(y.sum())").result == "10.0"


def test_what_is_not_kept(baton: Baton) -> None:
    baton.run("import numpy as np\nbig = np.zeros(9_000_000); rows = [big]")
    baton.run("%%gpu\nbig = 3")
    assert "In[2]: cannot be undone" in baton.run("%gpu_undo --list").text()
    cell = baton.run("%gpu_undo")
    assert cell.text("stderr").startswith("UsageError: In[2] cannot be undone: the earlier values take more than 64")
    assert baton.value("big") == "3"
    baton.run("%%gpu\nrows[0] += 1")
    baton.run("pass")
    assert "In[5] cannot be undone" in baton.run("%gpu_undo").text("stderr")


def test_an_array_that_was_changed_again(baton: Baton) -> None:
    baton.run(MAKE)
    baton.run("%%gpu\nx[0] = 1")
    baton.run("x += 1")
    cell = baton.run("%gpu_undo")
    assert "In[2] cannot be undone: a later cell has changed an array" in cell.text("stderr")
    assert baton.value("float(x.sum())") == "3001.0"


def test_too_much_that_arrives_later(baton_away: Baton) -> None:
    baton = baton_away
    baton.run("import numpy as np\nbig = np.zeros(9_000_000)")
    baton.follow.clear()
    baton.run("%%gpu\nbig += 1")
    baton.run("%%gpu\nsmall = 1")
    baton.follow.set()
    assert baton.run("float(big[0])").result == "1.0"
    assert "In[2] and In[3] cannot be undone" in baton.run("%gpu_undo").text("stderr")
    assert baton.value("float(big[0]), small") == "(1.0, 1)"


def test_deferred_results(baton_away: Baton) -> None:
    baton = baton_away
    baton.run(MAKE)
    before = baton.value(LOOK)
    baton.follow.clear()
    baton.run(CHANGE.replace("\nlen(rows)", ""))
    cell = baton.run("%gpu_undo")
    assert "of the results of In[2] have not arrived yet" in cell.text("stderr")
    baton.run("%%gpu\nx += 1")
    assert baton.run("%gpu_undo --list").text() == "In[2] and In[4]: its results have not arrived yet\n"
    baton.follow.set()
    assert baton.run("float(x.sum())").result == "3001.0"
    assert baton.run("%gpu_undo").text().startswith("Undone: In[2] and In[4]. ")
    assert baton.value(LOOK).replace(", [6]", ", []") == before
    baton.run("%%gpu\nx += 1")
    assert baton.run("float(x.sum())").result == "3000.0"
    baton.run("%gpu_undo")
    assert baton.value("float(x.sum())") == "0.0"


def test_after_the_session_has_ended(baton: Baton) -> None:
    baton.run(MAKE)
    before = baton.value(LOOK)
    baton.run(CHANGE.replace("\nlen(rows)", ""))
    baton.run("%gpu_reset")
    assert "In[2]: gone, made, rows, same, text, x" in baton.run("%gpu_undo --list").text()
    assert baton.run("%gpu_undo").text().startswith("Undone: In[2]. gone, made, rows, same, text, x are as before")
    assert baton.value(LOOK) == before


def test_what_an_error_left_and_what_is_no_option(baton: Baton) -> None:
    baton.run("rows = []")
    baton.run("%%gpu\nrows.append(1)\n1 / 0")
    assert "%gpu_undo --all: unknown" in baton.run("%gpu_undo --all").text("stderr")
    baton.fail_with = {
        "outcome": "worker_lost",
        "error": {"name": "WorkerLost", "value": "The worker was lost", "traceback": [], "hint": None},
    }
    baton.run("%%gpu\nrows.append(2)")
    baton.fail_with = None
    assert baton.run("%gpu_undo").text().startswith("Undone: In[2]. rows is as before")
    assert baton.value("rows") == "[]"


def test_after_the_proxy_has_ended(baton: Baton) -> None:
    """It ends when it has passed on the cell's changes, before the notebook reports that they were applied."""
    baton.run("rows = [1]")
    baton.end_proxy_after("finished")
    cell = baton.run("%%gpu\nrows.append(2)\nlen(rows)")
    assert cell.result == "2"
    assert baton.run("%%gpu\nrows.append(3)").error.startswith("GpuServiceError: Baton's proxy, which connects")
    assert baton.value("rows") == "[1, 2]"
    assert baton.run("%gpu_undo").text().startswith("Undone: In[2]. rows is as before")
    assert baton.value("rows") == "[1]"
