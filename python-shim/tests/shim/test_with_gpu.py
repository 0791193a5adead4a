"""`with gpu:` in a real notebook kernel, with blocks that a real session kernel runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Baton

IMPORTED = "from baton import gpu\nimport os\nhome = os.getpid()"


def test_a_block_of_a_cell(baton: Baton) -> None:
    baton.run(IMPORTED)
    baton.run("rows = [1]; same = rows; gone = 1")
    cell = baton.run(
        "before = 1\nwith gpu:\n    rows.append(os.getpid() != home)\n    del gone\n    new = 3\nrows, same is rows, new"
    )
    assert cell.reply["status"] == "ok", cell.traceback
    assert cell.result == "([1, True], True, 3)"
    assert baton.value("'gone' in globals()") == "False"


def ok(baton: Baton, code: str) -> str | None:
    cell = baton.run(code)
    assert cell.reply["status"] == "ok", cell.traceback
    return cell.result


def test_a_block_of_a_function(baton: Baton) -> None:
    baton.run(IMPORTED)
    code = """
def train(x, rows, *more, key=2):
    far, y = None, 1
    def closed(): return y
    with gpu(timeout="5m"):
        far = os.getpid() != home
        y = x * 2 + key
        rows.append(closed())
        new = [n * y for n in more]
        del x
    try:
        x
    except NameError:
        gone = True
    return far, y, closed(), new, gone
"""
    baton.run(code)
    assert ok(baton, "rows = [0]; train(5, rows, 1, 2), rows") == "((True, 12, 12, [12, 24], True), [0, 12])"
    assert ok(baton, "train(6, rows), rows") == "((True, 14, 14, [], True), [0, 12, 14])"


def test_break_continue_and_return(baton: Baton) -> None:
    baton.run(IMPORTED)
    baton.run(
        """
seen = []
for n in range(5):
    with gpu:
        for m in range(9):
            if m: break
            continue
        else:
            break
        if n == 1:
            continue
        if n == 3:
            break
        seen.append(n)
    seen.append('after')
else:
    seen.append('else')
"""
    )
    assert baton.value("seen") == "[0, 'after', 2, 'after']"
    assert baton.value("[name for name in globals() if name.startswith('__baton')]") == "[]"
    baton.run(
        """
def search(rows):
    for row in rows:
        with gpu:
            try:
                if row < 0: return
                if row == 1: continue
                if row == 2: break
                if row == 3: return row, rows
            finally:
                rows[0] = row
    return 'end'
def numbers():
    yield 1
    with gpu:
        if os.getpid() != home: return 5
    yield 2
"""
    )
    baton.run("rows = [0, 3]; found = search(rows)")
    assert baton.value("found, found[1] is rows, rows") == "((3, [3, 3]), True, [3, 3])"
    assert baton.value("[search(r) for r in []]") == "[]"
    assert ok(baton, "search([0, 1, 0]), search([0, 2, 3]), search([0, -1])") == "('end', 'end', None)"
    assert ok(baton, "list(numbers())") == "[1]"


def test_methods_and_declared_names(baton: Baton) -> None:
    baton.run(IMPORTED)
    baton.run(
        """
total = 0
class Base:
    def run(self): return 'base'
class Net(Base):
    __secret = 4
    def run(self):
        global total, made
        count = 0
        def more(self):
            nonlocal count
            with gpu as g:
                count += 1
                total_here: int = 7
                here = super().run()
            return total_here
        with gpu:
            self.kind = super().run()
            self.secret = self.__secret
            total += 1
            made = [total]
            __private = 3
            def inner(): return __private
            class Inner: pass
            names = inner.__qualname__, Inner.__qualname__, (lambda: 0).__qualname__
        return more(self), count, __private, names
"""
    )
    names = "Net.run.<locals>.inner Net.run.<locals>.Inner Net.run.<locals>.<lambda>"
    assert ok(baton, f"net = Net(); net.run() == (7, 1, 3, tuple({names!r}.split()))") == "True"
    assert baton.value("net.kind, net.secret, total, made") == "('base', 4, 1, [1])"


def test_awaiting(baton: Baton) -> None:
    baton.run(IMPORTED + "\nimport asyncio")
    assert ok(baton, "with gpu:\n    await asyncio.sleep(0)\n    far = os.getpid() != home\nfar") == "True"
    baton.run(
        "async def f(x):\n    with gpu:\n        await asyncio.sleep(0)\n        return x + 1, os.getpid() != home"
    )
    assert ok(baton, "await f(1)") == "(2, True)"


def test_text_that_names_variables(baton: Baton) -> None:
    baton.run(IMPORTED)
    baton.run("def f(a):\n    b = 2\n    with gpu:\n        c = eval('a + b')\n        return c, sorted(locals())")
    assert ok(baton, "f(1)") == "(3, ['a', 'b', 'c'])"
    baton.run("def g(a):\n    with gpu:\n        text = !echo {a}\n        %time print(a + 1)\n    return text")
    cell = baton.run("g(4)")
    assert cell.result == "['4']"
    assert cell.text().startswith("5\n")
    baton.run(
        "import pandas\ndef h(limit):\n    with gpu:\n        return len(pandas.DataFrame({'n': [1, 2]}).query('n > @limit'))"
    )
    assert ok(baton, "h(1)") == "1"
    assert ok(baton, "with gpu:\n    exec('fresh = 3')\nfresh") == "3"
    assert ok(baton, "hidden = 8\nwith gpu:\n    got = globals()['hidden']\ngot") == "8"


def test_another_gpu(baton: Baton) -> None:
    """The name may refer to another object where the block runs."""
    baton.run(IMPORTED + "\nimport contextlib")
    baton.run("def f(gpu):\n    with gpu as x:\n        y = x, os.getpid() == home\n    return y")
    assert ok(baton, "f(contextlib.nullcontext(5))") == "(5, True)"
    assert ok(baton, "f(gpu)[1]") == "False"
    assert ok(baton, "f(gpu)[0] is gpu") == "True"


def test_several_managers(baton: Baton) -> None:
    baton.run(IMPORTED + "\nimport contextlib, baton")
    baton.run(
        "with contextlib.nullcontext(os.getpid()) as a, baton.gpu, contextlib.nullcontext(os.getpid()) as b:\n    c = a == home, b == home"
    )
    assert baton.value("c") == "(True, False)"


@pytest.mark.parametrize(
    ("code", "message", "line"),
    [
        ("def f():\n    with gpu:\n        yield 1", "'yield' cannot be used inside", 4),
        ("class A:\n    with gpu:\n        x = 1", "cannot be used in the body of a class", 3),
        ("with gpu:\n    return 1", "'return' outside function", 3),
        ("with gpu:\n    break", "'break' outside loop", 3),
    ],
)
def test_what_a_block_cannot_hold(baton: Baton, code: str, message: str, line: int) -> None:
    baton.run("from baton import gpu")
    cell = baton.run(f"ran = True\n{code}")
    assert message in cell.error
    assert cell.error.startswith("SyntaxError")
    assert f"line {line}" in cell.error
    assert code.splitlines()[line - 2].strip() in cell.traceback
    assert baton.value("'ran' in globals()") == "False"
    assert not baton.calls


def test_errors(baton: Baton) -> None:
    baton.run(IMPORTED)
    cell = baton.run("rows = []\nwith gpu:\n    rows.append(1)\n    1 / 0\nrows.append(2)")
    assert cell.error == "ZeroDivisionError: division by zero"
    print(cell.traceback)
    assert cell.traceback.count("Cell In") == 1
    assert "Cell In[2], line 4" in cell.traceback
    assert "--> 4     1 / 0" in cell.traceback or "----> 4     1 / 0" in cell.traceback
    assert baton.value("rows") == "[1]"
    baton.run(
        "def deep(n):\n    return 1 / n\n\ndef train(n):\n    m = n\n    with gpu:\n        m -= 1\n        deep(m)"
    )
    cell = baton.run("def run():\n    train(1)\n\nrun()")
    print(cell.traceback)
    lines = [line for line in cell.traceback.splitlines() if line.startswith(("Cell In", "File"))]
    assert [line.partition(", in")[2] for line in lines] == ["", " run()", " train()", " deep(n)"]
    assert [line.split(",")[1].strip() for line in lines] == ["line 4", "line 2", "line 8", "line 2"]
    caught = "try:\n    train(1)\nexcept ZeroDivisionError as error:\n    kept = error\nimport traceback\n''.join(traceback.format_exception(kept))"
    print(ok(baton, caught))
    assert "baton_shim" not in (ok(baton, caught) or "")


def test_errors_name_the_cell_and_function_that_ran(baton: Baton) -> None:
    """Although the codes of the blocks are equal."""
    baton.run(IMPORTED)
    for name, before in (("train", 1), ("train", 2), ("again", 2)):
        cell = baton.run(f"def {name}(n):\n    m = n + {before}\n    with gpu:\n        1 / n\n{name}(0)")
        number = cell.reply["execution_count"]
        lines = [line for line in cell.traceback.splitlines() if line.startswith("Cell In")]
        assert lines == [f"Cell In[{number}], line 5", f"Cell In[{number}], line 4, in {name}()"]
        assert f"m = n + {before}" in cell.traceback


def test_in_the_session_it_changes_nothing(baton: Baton) -> None:
    baton.run(IMPORTED)
    baton.run("def f():\n    with gpu:\n        return os.getpid()\n@gpu\ndef g(): return os.getpid()")
    assert ok(baton, "%%gpu\nwith gpu:\n    x = f(), g(), os.getpid()\nlen(set(x))") == "1"
    assert ok(baton, "with gpu:\n    with gpu:\n        x = f(), g(), os.getpid()\nlen(set(x))") == "1"
    assert len(baton.calls) == 2
    ok(baton, "%%gpu\ndef made():\n    with gpu:\n        return os.getpid()")
    assert len(baton.calls) == 3
    assert ok(baton, "made() == x[0]") == "True"
    assert len(baton.calls) == 4


def test_gpu_functions(baton: Baton) -> None:
    baton.run(IMPORTED + "\nimport inspect, pickle")
    baton.run(
        """
scale, calls = 2, []
def helper(x): return x * scale
@gpu(timeout="5m")
def fit(rows, n=2, *more, key: int = 1, **others):
    "Doc."
    global calls
    rows.append(os.getpid() != home)
    calls = [*calls, n]
    if n > 2: return fit(rows, n - 1)
    return rows, helper(n + key), more, others
class Model:
    def __init__(self): self.w = [0]
    @gpu
    def step(self): self.w.append(len(self.w)); return self
    @staticmethod
    @gpu
    def far(): return os.getpid() != home
    @classmethod
    @gpu
    def make(cls): return cls()
    @gpu
    async def later(self): return self
"""
    )
    assert ok(baton, "rows = []; got = fit(rows); got, got[0] is rows, calls") == "(([True], 6, (), {}), True, [2])"
    assert ok(baton, "fit(rows, 3)[0] is rows, rows, calls") == "(True, [True, True, True], [2, 3, 2])"
    assert ok(baton, "fit([], 2, 'a', key=3, z=4)") == "([True], 10, ('a',), {'z': 4})"
    assert len(baton.calls) == 3
    assert baton.value("str(inspect.signature(fit)), fit.__doc__, fit.__name__") == (
        "('(rows, n=2, *more, key: int = 1, **others)', 'Doc.', 'fit')"
    )
    assert baton.value("pickle.loads(pickle.dumps(fit)) is fit") == "True"
    assert ok(baton, "m = Model(); m.step() is m, m.step().w, Model.far(), type(Model.make()) is Model") == (
        "(True, [0, 1, 2], True, True)"
    )
    assert ok(baton, "await m.later() is m") == "True"
    cell = baton.run("def run(): return fit()\nrun()")
    assert cell.error == "TypeError: fit() missing 1 required positional argument: 'rows'"
    assert "in run()" in cell.traceback and "baton_shim" not in cell.traceback
    cell = baton.run("@gpu\ndef bad(x):\n    x.append(1)\n    return 1 / 0\n\nkept = []\nbad(kept)")
    assert cell.error == "ZeroDivisionError: division by zero"
    assert "line 7" in cell.traceback and "line 4, in bad(x)" in cell.traceback
    assert cell.traceback.count("Cell In") == 2
    assert baton.value("kept") == "[1]"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("@gpu\ndef f(): yield", "TypeError: @gpu cannot decorate a generator"),
        ("@gpu\nclass A: pass", "TypeError: @gpu decorates functions, not a type"),
        ("gpu(3)", "TypeError: @gpu decorates functions, not a int"),
        ("gpu(timeout='soon')", "ValueError: --timeout soon: that is not a duration"),
        ("gpu(speed=3)", "ValueError: unrecognized arguments: --speed 3"),
        ("gpu(quite=True)", "ValueError: unrecognized arguments: --quite\nhint: did you mean --quiet?"),
        ("import threading\nexec('with gpu: pass')", "RuntimeError: This 'with gpu:' was compiled without Baton"),
    ],
)
def test_what_is_refused_where_it_is_written(baton: Baton, code: str, error: str) -> None:
    baton.run(IMPORTED)
    assert baton.run(code).error.startswith(error)
    assert not baton.calls


def test_what_cannot_travel(baton: Baton) -> None:
    baton.run(IMPORTED)
    baton.run("def f():\n    steps = (n for n in [1])\n    with gpu:\n        x = 3\n        return next(steps)")
    stayed = "StandInError: 'steps' is a generator and cannot move to the GPU machine"
    cell = baton.run("f()")
    assert cell.error == stayed
    assert "hint: create it inside the cell, or turn it into a list first" in cell.traceback
    cell = baton.run("steps = (n for n in [1])\nwith gpu:\n    next(steps)")
    assert cell.error == "StateRefused: 'steps' is a generator and cannot move to the GPU machine"
    assert "Your variables are as they were before the block" in cell.traceback
    assert baton.run("@gpu\ndef g(steps): return next(steps)\ng(steps)").error == stayed
    made = "@gpu\ndef g(): return (n for n in [1])\n@gpu\ndef h(made): return next(made)\nmade = g()\nh(made)"
    assert baton.run(made).result == "1"
    assert "lives on the GPU machine" in baton.run("next(made)").error


def test_own_modules(baton: Baton) -> None:
    (baton.folder / "mine.py").write_text(
        """import os
from baton import gpu as far
def run(x):
    with far:
        x.append(os.getpid())
        y = len(x)
    return y
def wrong():
    with far:
        1 / 0
@far
def whole(x):
    x.append(os.getpid())
    return x
"""
    )
    assert ok(baton, "import mine, os\nx = []\nmine.run(x), mine.run(x), mine.whole(x) is x") == "(1, 2, True)"
    assert baton.value("len(set(x)), os.getpid() in x") == "(1, False)"
    cell = baton.run("mine.wrong()")
    assert "mine.py:10, in wrong()" in cell.traceback
    assert "---> 10         1 / 0" in cell.traceback
    assert cell.traceback.count("in wrong") == 1
    assert not list(baton.folder.glob("__pycache__/mine*"))
    assert ok(baton, "%%gpu\nmine.run(x)") == "4"
    (baton.folder / "top.py").write_text("from baton import gpu\nwith gpu:\n    x = 1\n")
    cell = baton.run("import top")
    assert cell.error.startswith("SyntaxError: 'with gpu:' cannot be used at the top level of a module")
    assert "top.py:2" in cell.traceback and "with gpu:" in cell.traceback
