"""Variables are sent to a `%%gpu` cell and back, as if the cell had run in the notebook."""

from __future__ import annotations

import pytest
from end_to_end import Kernel


def check(kernel: Kernel, here: str, there: str, expression: str, expected: object) -> None:
    """Runs `here` in the notebook, `there` as a `%%gpu` cell, then checks an expression in the notebook."""
    kernel.run(here).ok()
    kernel.gpu(there).ok()
    assert kernel.evaluate(expression) == expected


@pytest.mark.parametrize(
    ("here", "there", "expression", "expected"),
    [
        pytest.param("a = 2", "b = a * 21", "(a, b)", (2, 42), id="new"),
        pytest.param("a = [1]", "a.append(2)", "a", [1, 2], id="changed"),
        pytest.param("a = [1]", "a = 'other'", "a", "other", id="rebound"),
        pytest.param("a = b = 1", "del a", "('a' in dir(), b)", (False, 1), id="deleted"),
        pytest.param("a = 1", "a += 1", "a", 2, id="augmented"),
        pytest.param("a = {'k': [1]}", "a['k'].append(a['k'][0])", "a", {"k": [1, 1]}, id="nested"),
        pytest.param("a = 1\nb = 2", "a, b = b, a", "(a, b)", (2, 1), id="swapped"),
        pytest.param("a = []", "a.append(a)", "a[0] is a", True, id="circular"),
        pytest.param("", "global_one = 1\ndef f():\n    global made\n    made = 3\nf()", "made", 3, id="global"),
        pytest.param("", "import math", "math.floor(2.5)", 2, id="import"),
        pytest.param("import math", "root = math.sqrt(81)", "root", 9.0, id="imported before"),
    ],
)
def test_names(kernel: Kernel, here: str, there: str, expression: str, expected: object) -> None:
    check(kernel, here, there, expression, expected)


@pytest.mark.parametrize(
    ("here", "there", "expression", "expected"),
    [
        pytest.param("a = []\nb = a", "a.append(1)\nb.append(2)", "(a, a is b)", ([1, 2], True), id="two names"),
        pytest.param("a = []\nb = [a]", "b[0].append(1)", "(a, b[0] is a)", ([1], True), id="name and element"),
        pytest.param("a = []\nheld = a", "a.append(1)", "(held, held is a)", ([1], True), id="a name unused there"),
        pytest.param("", "a = []\nb = (a, a)", "b[0] is b[1] is a", True, id="made there"),
        pytest.param(
            "import numpy as np\na = np.zeros(4)\nb = a[1:3]",
            "a[:] = 7\nb[0] = 1",
            "(a.tolist(), b.base is a)",
            ([7, 1, 7, 7], True),
            id="array and view",
        ),
        pytest.param(
            "import numpy as np\na = np.zeros(4)\nheld = a[2:]",
            "a += 1",
            "(held.tolist(), held.base is a)",
            ([1, 1], True),
            id="view unused there",
        ),
    ],
)
def test_sharing(kernel: Kernel, here: str, there: str, expression: str, expected: object) -> None:
    check(kernel, here, there, expression, expected)


def test_sharing_over_several_cells(kernel: Kernel) -> None:
    kernel.run("a = [0]\nb = a").ok()
    for number in range(1, 4):
        kernel.gpu(f"a.append({number})").ok()
        kernel.run(f"b.append({number * 10})").ok()
    assert kernel.evaluate("(a, a is b)") == ([0, 1, 10, 2, 20, 3, 30], True)


@pytest.mark.parametrize(
    ("here", "there", "expression", "expected"),
    [
        pytest.param(
            "def double(n):\n    return 2 * n\ndef twice(n):\n    return double(double(n))",
            "a = twice(3)",
            "a",
            12,
            id="through functions",
        ),
        pytest.param("rate = 2\ndef scaled(n):\n    return n * rate", "a = scaled(5)", "a", 10, id="a global"),
        pytest.param("", "def made(n):\n    return n + 1", "made(1)", 2, id="made there"),
        pytest.param(
            "",
            "offset = 1\ndef made(n):\n    return n + offset",
            "(globals().update(offset=5), made(1))[1]",
            6,
            id="binds to the notebook's names",
        ),
        pytest.param(
            "def counter():\n    count = 0\n    def step():\n        nonlocal count\n        count += 1\n"
            "        return count\n    return step\nstep = counter()",
            "step()\nstep()",
            "step()",
            3,
            id="a closure's cell",
        ),
        pytest.param(
            "class Point:\n    def __init__(self, x):\n        self.x = x\np = Point(1)",
            "p.x = 5\nq = Point(2)",
            "(p.x, q.x, type(p) is type(q) is Point)",
            (5, 2, True),
            id="a class",
        ),
        pytest.param(
            "",
            "class Made:\n    size = 3\nmade = Made()",
            "(made.size, isinstance(made, Made))",
            (3, True),
            id="a class made there",
        ),
        pytest.param(
            "class Base:\n    def name(self):\n        return 'base'\nclass Child(Base):\n    def name(self):\n"
            "        return super().name() + ' child'",
            "a = Child().name()",
            "a",
            "base child",
            id="super",
        ),
        pytest.param(
            "from dataclasses import dataclass\n@dataclass\nclass Pair:\n    a: int\n    b: int\np = Pair(1, 2)",
            "p.a, p.b = p.b, p.a",
            "(p.a, p.b, p == Pair(2, 1))",
            (2, 1, True),
            id="a data class",
        ),
    ],
)
def test_functions_and_classes(kernel: Kernel, here: str, there: str, expression: str, expected: object) -> None:
    check(kernel, here, there, expression, expected)


@pytest.mark.parametrize(
    ("here", "there", "expression", "expected"),
    [
        pytest.param(
            "import numpy as np\nx = np.arange(6).reshape(2, 3)",
            "y = x.T @ x",
            "y[2].tolist()",
            [15, 22, 29],
            id="numpy",
        ),
        pytest.param(
            "import numpy as np\nx = np.arange(3_000_000.0)", "x *= 2", "float(x.sum())", 8999997000000.0, id="24 MB"
        ),
        pytest.param(
            "import pandas as pd\nt = pd.DataFrame({'a': [1, 2]})",
            "t['b'] = t.a * 2",
            "t.to_dict('list')",
            {"a": [1, 2], "b": [2, 4]},
            id="pandas",
        ),
        pytest.param(
            "from sklearn.linear_model import LinearRegression\nm = LinearRegression()",
            "_ = m.fit([[0], [1]], [1, 3])",
            "round(float(m.coef_[0]), 6)",
            2.0,
            id="scikit-learn",
        ),
        pytest.param("big = b'x' * 5_000_000", "half = big[:2_500_000]", "len(half)", 2_500_000, id="bytes"),
    ],
)
def test_data(kernel: Kernel, here: str, there: str, expression: str, expected: object) -> None:
    check(kernel, here, there, expression, expected)


def test_so_many_arrays_that_their_list_alone_fills_a_socket(kernel: Kernel) -> None:
    kernel.run("import numpy as np\nrows = [np.full(3, number) for number in range(6000)]").ok()
    assert kernel.gpu("for row in rows: row += 1\nsum(row[0] for row in rows)").ok().value == "np.int64(18003000)"
    assert kernel.evaluate("[int(row[2]) for row in rows] == [*range(1, 6001)]")


def test_state_up_to_an_error_comes_home(kernel: Kernel) -> None:
    kernel.run("a = [1]").ok()
    assert kernel.gpu("a.append(2)\nb = 3\nraise ValueError('stop')").error == ("ValueError", "stop")
    assert kernel.evaluate("(a, b)") == ([1, 2], 3)


def test_what_cannot_travel_home_stays_usable_there(kernel: Kernel) -> None:
    kernel.gpu("numbers = (n * n for n in range(5))\nfirst = next(numbers)").ok()
    assert kernel.evaluate("first") == 0
    local = kernel.run("next(numbers)")
    assert local.error is not None
    assert "lives on the GPU machine" in local.error[1]
    assert kernel.gpu("next(numbers)").ok().value == "1"


ONLY_THERE = """
import sys, types
made_there = types.ModuleType("made_there")
exec("class Thing:\\n    def __init__(self): self.number = 1", vars(made_there))
sys.modules["made_there"] = made_there
"""


def test_what_the_notebook_cannot_rebuild_costs_the_cell_nothing_else(kernel: Kernel) -> None:
    """For example, an object of a module that a compiler writes while it runs."""
    kernel.run("numbers = [1]").ok()
    result = kernel.gpu(f"{ONLY_THERE}thing = made_there.Thing()\nnumbers.append(2)").ok()
    what = "'Thing' of the module 'made_there' cannot be imported here"
    assert f"warning: {what} (ModuleNotFoundError: No module named 'made_there')" in result.stderr
    assert kernel.evaluate("numbers") == [1, 2]
    local = kernel.run("thing.number")
    assert local.error is not None
    assert what in local.error[1]
    assert kernel.gpu("thing.number += 1\nnumbers.append(thing.number)").ok().stderr == ""
    assert kernel.evaluate("numbers") == [1, 2, 2]


def test_what_cannot_travel_is_refused_before_the_run(kernel: Kernel) -> None:
    kernel.run("batches = (n for n in range(3))\nkept = 1").ok()
    result = kernel.gpu("kept = 2\nprint(batches)")
    assert result.outputs == [("error", f"{result.error[0]}: {result.error[1]}")]
    assert "'batches' is a generator" in result.error[1]
    assert "hint: " in result.plain_traceback
    assert "Your variables are as they were before" in result.plain_traceback
    assert kernel.evaluate("kept") == 1
    assert kernel.gpu("kept + 1").ok().value == "2"


def test_what_cannot_travel_inside_something_is_named_with_its_path(kernel: Kernel) -> None:
    """It stops only the cell that uses it."""
    kernel.run("class Loader:\n    size = 3\nloader = Loader()\nloader._iterator = (n for n in range(3))").ok()
    assert kernel.gpu("loader.size").ok().value == "3"
    result = kernel.gpu("for batch in loader._iterator:\n    print(batch)")
    assert result.error is not None
    assert "'loader._iterator' is a generator" in result.error[1]
    assert "hint: " in result.plain_traceback
    assert kernel.evaluate("list(loader._iterator)") == [0, 1, 2]


def test_a_name_that_does_not_exist(kernel: Kernel) -> None:
    result = kernel.gpu("x = 1\nprint(never_made)")
    assert result.error == ("NameError", "name 'never_made' is not defined")
    assert "line 3" in result.plain_traceback


def test_two_notebooks_do_not_see_each_other(kernel: Kernel, new_kernel) -> None:
    other = new_kernel()
    kernel.gpu("mine = 1").ok()
    assert other.gpu("'mine' in dir()").ok().value == "False"
    assert other.session_pid != kernel.session_pid


def test_a_restarted_notebook_begins_empty(new_kernel) -> None:
    kernel = new_kernel()
    kernel.gpu("x = 1").ok()
    before = kernel.session_pid
    kernel.restart()
    assert kernel.gpu("'x' in dir()").ok().value == "False"
    assert kernel.session_pid != before


def test_an_old_value_is_never_used(kernel: Kernel) -> None:
    kernel.run("x = 1").ok()
    kernel.gpu("x + 1").ok()
    kernel.run("del x").ok()
    assert kernel.gpu("x").error == ("NameError", "name 'x' is not defined")


def test_what_a_cell_changed_before_it_bound_the_name_anew_is_changed_under_other_names(kernel: Kernel) -> None:
    kernel.run("import numpy as np\nx = np.zeros(20_000); view = x[::2]; items = []; held = {'items': items}").ok()
    kernel.gpu("x += 1; view, held").ok()
    kernel.gpu("x += 1; x = x + 1; items.append(1); items = []").ok()
    assert kernel.evaluate("float(x[0]), float(view[0]), held") == (3.0, 2.0, {"items": [1]})
    kernel.gpu("view.base[0] = 7; del view").ok()
    kernel.run("y = x[1:]").ok()
    kernel.gpu("x += 1; del x").ok()
    assert kernel.evaluate("float(y[0])") == 4.0
