"""Names of the notebook that a cell looks up although its code does not show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from conftest import Baton

NAME = "n = 'x'"


@pytest.mark.parametrize(
    "body",
    [
        "eval(n)",
        "eval(n + ' * 1')",
        "exec('y = ' + n)\ny",
        "def f(): return eval(n)\nf()",
        "class A: y = eval(n)\nA.y",
        "class A: exec('y = ' + n)\nA.y",
        "sum(eval(n) for _ in 'a')",
        "[eval(n) for _ in 'a'][0]",
        "eval('lambda: ' + n)()",
        "globals()[n]",
        "globals()['x']",
        "globals().get('x')",
        "locals()[n]",
        "vars()[n]",
        "import sys\ngetattr(sys.modules['__main__'], n)",
        "import importlib\nimportlib.import_module('__main__').x",
        "import sys\nsys.modules['__main__'].__dict__[n]",
        "import sys\nvars(sys.modules['__main__'])[n]",
        "get_ipython().ev(n)",
        "get_ipython().run_line_magic('time', n)",
        "async def f(): return eval(n)\nawait f()",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor() as pool: found = list(pool.map(lambda name: eval(name), [n] * 8))\nfound[0]",
    ],
)
def test_ways_to_look_up_a_name(baton: Baton, body: str) -> None:
    baton.run(f"x = 42; {NAME}")
    cell = baton.run(f"%%gpu\n{body}")
    assert cell.reply["status"] == "ok", cell.traceback
    assert cell.result == "42" or "42" in cell.text(), cell.messages


def test_functions_that_look_up_names(baton: Baton) -> None:
    baton.run("x = [4]; steps = iter([1])\ndef f(n): return globals()[n]\ndef g(n): return eval(n)\nnames = 'fg'")
    baton.run("%%gpu\nf, g")
    assert baton.run("%%gpu\nf('x').append(g('le' + 'n(x)'))\nf('x') is g('x'), next(f('steps'))").result == "(True, 1)"
    body = "import sys\nmain = sys.modules['__main__']\n[getattr(main, name)('x') for name in names]"
    assert baton.run(f"%%gpu\n{body}").result == "[[4, 1], [4, 1]]"


def test_other_cells_have_the_builtins_of_every_module(baton: Baton) -> None:
    baton.run(f"x = 42; {NAME}\ndef f(): return x")
    baton.run("%%gpu\neval(n)")
    body = "def g(): return len\nimport builtins as b\nf.__builtins__ is g.__builtins__ is b.__dict__"
    assert baton.run(f"%%gpu\n{body}").result == "True"


def test_one_question_for_a_name_and_what_it_uses(baton: Baton) -> None:
    baton.run("rate = 3\ndef g(v): return v * rate\ndef f(v): return g(v)\nother = 1")
    assert baton.run("%%gpu\neval('f' + '(2)') + eval('f' + '(3)')").result == "15"
    assert baton.asked == [["f"]]


def test_doctest_finds_the_examples_of_all_functions(baton: Baton) -> None:
    baton.run("def f():\n    '>>> f()\\n1'\n    return 1\ndef g():\n    '>>> f() + 1\\n3'")
    assert baton.run("%%gpu\nimport doctest\ndoctest.testmod()").result == "TestResults(failed=1, attempted=2)"


def test_a_dataclass_does_not_request_all_names(baton: Baton) -> None:
    baton.run("x = 42")
    assert baton.run("%%gpu\nimport dataclasses\n@dataclasses.dataclass\nclass A: y: 'int' = 3\nA().y").result == "3"
    assert baton.asked == []


def test_an_unknown_name_is_a_name_error_without_a_question(baton: Baton) -> None:
    cell = baton.run("%%gpu\ntry: eval('no' + 'body')\nexcept NameError as e: print(e)\neval('no' + 'body')")
    assert cell.text() == "name 'nobody' is not defined\n"
    assert cell.error == "NameError: name 'nobody' is not defined"
    assert baton.asked == []
    assert baton.run("%%gpu\nimport sys\nhasattr(sys.modules['__main__'], 'nobody')").result == "False"
    assert baton.asked == []


def test_an_empty_namespace_stays_empty(baton: Baton) -> None:
    baton.run(f"x = 42; {NAME}")
    assert baton.run("%%gpu\neval(n, {})").error == "NameError: name 'x' is not defined"
    assert baton.asked == []


def test_what_travelled_already_is_shared_and_keeps_the_cells_changes(baton: Baton) -> None:
    baton.run("rows = [1]\nholder = {'rows': rows, 'new': [0]}\nstayed = [holder['new']]")
    cell = baton.run("%%gpu\nrows.append(2)\nh = eval('hol' + 'der')\nh['rows'] is rows, h['rows'], h['new'].append(9)")
    assert cell.result == "(True, [1, 2], None)"
    assert baton.value("rows, holder['rows'] is rows, holder['new'], stayed[0] is holder['new'], h is holder") == (
        "([1, 2], True, [0, 9], True, True)"
    )


def test_memory_that_travelled_already_keeps_the_cells_changes(baton: Baton) -> None:
    pytest.importorskip("numpy")
    baton.run("import numpy as np\na = np.zeros(20000)\nview = a[::2]\nboth = (a, np.ones(20000))")
    body = "a[0] = 1\na[19998] = 5\nv = eval('vi' + 'ew')\nv[1] = 7\nb = eval('bo' + 'th')\nb[1][3] = 4\nb[0] is a"
    assert baton.run(f"%%gpu\n{body}").result == "True"
    assert baton.value("[*map(int, (a[0], a[2], a[19998], view[0], view[1], both[1][3]))]") == "[1, 7, 5, 1, 7, 4]"
    assert baton.value("np.shares_memory(a, view), both[0] is a") == "(True, True)"


def test_a_change_at_home_while_the_cell_runs_does_not_undo_the_cells(baton: Baton) -> None:
    baton.run(
        "import os, threading\nos.mkfifo('go'); os.mkfifo('done')\n"
        "rows = [1]; memory = bytearray(9000); other = [1]; holder = [rows, memory, other]\n"
        "def change():\n    open('go').read()\n    rows.append('home'); memory[1] = 5; other.append('home')\n"
        "    open('done', 'w').close()\n"
        "threading.Thread(target=change).start()"
    )

    def change_at_home() -> None:
        (baton.folder / "go").write_text("")
        (baton.folder / "done").read_text()

    baton.before_names = change_at_home
    cell = baton.run("%%gpu\nrows.append(2); memory[0] = 3\nh = eval('hol' + 'der')\nh[0], h[1][0], h[0] is rows, h[2]")
    assert cell.result == "([1, 2], 3, True, [1, 'home'])"
    assert baton.value("rows, memory[0], other") == "([1, 2], 3, [1, 'home'])"


def test_what_an_earlier_cell_brought_is_fetched_as_it_is_now(baton: Baton) -> None:
    pytest.importorskip("numpy")
    baton.run("import numpy as np\nrows = [1]\na = np.zeros(9)\nsame = rows")
    baton.run("%%gpu\nrows, a")
    baton.run("rows.append(2); a[1] = 5; x = 1")
    assert baton.run("%%gpu\neval('ro' + 'ws'), float(eval('a' + '[1]'))").result == "([1, 2], 5.0)"
    assert baton.asked == [["rows"], ["a"]]
    baton.run("%%gpu\neval('ro' + 'ws').append(3)")
    assert baton.value("rows, same is rows") == "([1, 2, 3], True)"
    assert baton.run("%%gpu\nrows, float(a[1])").result == "([1, 2, 3], 5.0)"


def test_names_that_the_cell_bound_or_deleted(baton: Baton) -> None:
    baton.run("x = 1\ny = 2\ndef f(): return x, y")
    assert baton.run("%%gpu\nx = 10\neval('f' + '()')").result == "(10, 2)"
    assert baton.value("x, y") == "(10, 2)"
    cell = baton.run("%%gpu\ndel y\neval('f' + '()')")
    assert cell.error == "NameError: name 'y' is not defined"
    assert baton.value("'y' in globals()") == "False"


def test_a_fetched_name_that_is_bound_anew_or_deleted(baton: Baton) -> None:
    baton.run("x = [1]; y = [2]; z = 3")
    assert (
        baton.run("%%gpu\neval('x' + '')\nx = 5\nexec('global y; y')\ndel y\nexec('z = z' + '+ 1')").reply["status"]
        == "ok"
    )
    assert baton.value("x, 'y' in globals(), z") == "(5, False, 4)"


def test_code_that_lists_names(baton: Baton) -> None:
    baton.run("x = 1; steps = (n for n in []); big = bytes(9 << 20)")
    ours = "[n for n in {} if n in ('x', 'steps', 'big')]"
    assert baton.run("%%gpu\n" + ours.format("dir()")).result == "['big', 'steps', 'x']"
    assert (
        baton.run("%%gpu\n" + ours.format("get_ipython().run_line_magic('who_ls', '')")).result
        == "['big', 'steps', 'x']"
    )
    assert baton.run("%%gpu\n%who").text().split() == ["big", "steps", "x"]
    assert baton.run("%%gpu\n'x' in dir(), 'nobody' in globals()").result == "(True, False)"
    assert baton.asked == []
    assert baton.mover.bytes_moved == 0
    assert baton.run("%%gpu\n%who int").text().split() == ["x"]
    assert baton.run("%%gpu\nsorted(" + ours.format("globals()") + ")").result == "['big', 'steps', 'x']"
    assert "bytes" in baton.run("%%gpu\n%whos").text()
    assert baton.value("type(steps).__name__, len(big)") == "('generator', 9437184)"


def test_entries_of_the_namespace(baton: Baton) -> None:
    baton.run("x = 1; y = 2; big = bytes(9 << 20)")
    assert (
        baton.run("%%gpu\n'x' in globals(), 'x' not in vars(), globals().get('none')").result == "(True, False, None)"
    )
    baton.run("%%gpu\nif 'x' not in globals(): x = 5\nglobals()['new'] = 3\nglobals().setdefault('y', 7)")
    assert baton.value("x, y, new") == "(1, 2, 3)"
    baton.run("%%gpu\ndel globals()['x']")
    assert baton.value("'x' in globals()") == "False"
    assert baton.mover.bytes_moved == 0


def test_a_deletion_in_text(baton: Baton) -> None:
    baton.run("x = 1; y = 2")
    assert baton.run("%%gpu\nexec('del x')").reply["status"] == "ok"
    assert baton.value("'x' in globals()") == "False"


def test_reset_counts_the_results_in_the_notebook(baton: Baton) -> None:
    def reset(magic: str) -> str:
        baton.run("1")
        baton.run("%%gpu\n2")
        return baton.run(magic + "%reset -f out\n%reset -f out").text()

    expected = "Flushing output cache (2 entries)\nFlushing output cache (0 entries)\n"
    assert (reset(""), reset("%%gpu\n")) == (expected, expected)


def test_only_a_reset_of_the_results_clears_them(baton: Baton) -> None:
    baton.run("[7]")
    assert baton.run("%%gpu\n%reset -f in\n[7] in _oh.values()").result == "True"
    assert baton.value("[7] in Out.values()") == "True"
    assert baton.run("%%gpu\n%reset -f out\nlen(_oh)").result == "0"
    assert baton.value("[7] in Out.values()") == "False"


def test_reset_in_a_cell(baton: Baton) -> None:
    baton.run("x = 1; steps = (n for n in [])")
    assert baton.run("%%gpu\n%reset -f").reply["status"] == "ok"
    assert baton.value("'x' in globals(), 'steps' in globals()") == "(False, False)"


def test_a_name_that_cannot_come_says_why(baton: Baton) -> None:
    baton.run("steps = (n for n in [1])\ndef f(): return list(steps)\nheld = [steps, 1]")
    cell = baton.run("%%gpu\neval('st' + 'eps')")
    assert cell.error == "StandInError: 'steps' is a generator and cannot move to the GPU machine"
    assert "hint: create it inside the cell, or turn it into a list first" in cell.traceback
    cell = baton.run("%%gpu\ntry: eval('st' + 'eps')\nexcept RuntimeError as e: print(e)\nmine = 1\neval('f' + '()')")
    assert cell.text() == "'steps' is a generator and cannot move to the GPU machine\n"
    assert cell.error.startswith("StandInError")
    assert baton.value("mine") == "1"
    assert baton.asked == [["steps"], ["steps"], ["f"]]
    assert baton.run("%%gpu\neval('he' + 'ld')[1]").result == "1"
    assert "'steps' is a generator" in str(baton.run("%%gpu\nstr(globals()['st' + 'eps'])").result)
    assert baton.value("list(steps)") == "[1]"


def test_dropped_names_are_not_fetched(baton: Baton) -> None:
    baton.run("x = 1")
    cell = baton.run("%%gpu --drop x\nprint('x' in dir(), 'x' in globals())\neval('x' + '')")
    assert cell.text() == "False False\n"
    assert cell.error == "NameError: name 'x' is not defined"
    assert baton.asked == []


def test_what_lives_in_the_session(baton: Baton) -> None:
    baton.run("%%gpu\nsteps = iter(n for n in [1, 2])\nsteps = (n for n in [1, 2])")
    assert baton.run("%%gpu\nnext(eval('st' + 'eps'))").result == "1"
    assert baton.run("%%gpu\nnext(steps)").result == "2"


def test_an_interrupt_while_a_name_is_fetched(baton: Baton) -> None:
    baton.run("x = 1; done = []")
    baton.before_names = baton.interrupt
    cell = baton.run("%%gpu\ndone.append(1)\neval('x' + '')\ndone.append(2)")
    assert cell.reply["ename"] == "KeyboardInterrupt"
    assert baton.value("done") == "[1]"
    baton.before_names = lambda: None
    assert baton.run("%%gpu\neval('do' + 'ne'), eval('x' + '')").result == "([1], 1)"


def test_a_thread_that_outlives_its_cell(baton: Baton) -> None:
    baton.run("x = 1; y = 2")
    body = (
        "import threading\ngo = threading.Event(); said = []\n"
        "def work():\n    go.wait()\n    try: said.append(eval('x' + ''))\n    except NameError as e: said.append(str(e))\n"
        "t = threading.Thread(target=work); t.start()\nimport builtins; builtins.kept = go, said, t\nNone"
    )
    cell = baton.run(f"%%gpu --drop go said t\n{body}")
    assert cell.reply["status"] == "ok", cell.traceback
    cell = baton.run(
        "%%gpu\nimport builtins\ngo, said, t = builtins.kept\ngo.set(); t.join()\neval('print(said)')\ndel go, said, t"
    )
    assert cell.text() == "[1]\n", cell.messages


def test_a_thread_while_the_cell_asks_the_student(baton: Baton) -> None:
    baton.run("x = 42")
    body = (
        "import threading\nfound = []\nt = threading.Thread(target=lambda: found.append(eval('x' + '')))\n"
        "t.start()\nname = input('Name: ')\nt.join()\nfound, name"
    )
    assert baton.run(f"%%gpu\n{body}", answers=["Ada"]).result == "([42], 'Ada')"


def test_what_fails_when_it_is_set_up_is_told(baton: Baton) -> None:
    baton.run("class A:\n    def __setstate__(self, state): raise ValueError('no')\na = A(); a.x = 1\nkept = [1]")
    cell = baton.run("%%gpu\nkept.append(2)\neval('a' + '')")
    what = "'a' could not be restored on the GPU machine (ValueError: no)"
    assert cell.error == f"StateRefused: {what}"
    assert baton.value("kept") == "[1]"


def test_builtins_are_the_notebooks(baton: Baton) -> None:
    body = (
        "from unittest import mock\nimport builtins\n"
        "with mock.patch('builtins.len', lambda value: 7): print(len([]))\n"
        "print(len([]))\nbuiltins.mine = 3\nprint(mine, __builtins__.abs(-1), __builtins__.sum is sum)\ndel builtins.mine\nmine"
    )
    cell = baton.run(f"%%gpu\n{body}")
    assert cell.text() == "7\n0\n3 1 True\n"
    assert cell.error == "NameError: name 'mine' is not defined"


def test_status_names_what_was_looked_up(baton: Baton) -> None:
    baton.run("x = bytes(3 << 20)")
    baton.run("%%gpu\nlen(eval('x' + ''))")
    assert "x (3.0 MiB): the cell looked it up while it ran" in baton.run("%gpu_status").text()


MODEL = """
scale = 3
def helper(x): return x * scale
class Model:
    def forward(self, x): return helper(x)
def train(model, data): return sum(model.forward(len(row)) for row in data[:3])
"""


def test_the_functions_of_a_model_arrive_beside_large_data(baton: Baton) -> None:
    baton.run(f"{MODEL}\ndata = [[[w, w + 1] for w in range(20)] for _ in range(5000)]; model = Model()")
    assert baton.run("%%gpu\ntrain(model, data)").result == "180"
    assert baton.asked == []


def test_the_functions_of_objects_in_arrays_and_weak_references_arrive(baton: Baton) -> None:
    baton.run(f"import weakref, numpy as np\n{MODEL}\nkept = Model(); models = np.array([kept, Model()], dtype=object)")
    assert baton.run("%%gpu\n[model.forward(1) for model in models]").result == "[3, 3]"
    baton.run("def more(x): return 2 * x\nclass Other(Model):\n    def forward(self, x): return more(x)")
    baton.run("last = Other(); back = weakref.ref(last)")
    assert baton.run("%%gpu\nback().forward(2)").result == "4"
    assert baton.asked == []


def test_pickled_by_name(baton: Baton) -> None:
    baton.run("import pickle\nclass A: pass\ndata = pickle.dumps(A())")
    assert baton.run("%%gpu\ntype(pickle.loads(data)).__name__").result == "'A'"
    assert baton.asked == [["A"]]


def processor_seconds(baton: Baton) -> float:
    assert baton.session is not None
    times = [psutil.Process(pid).cpu_times() for pid in (baton.notebook.pid, baton.session.pid)]
    return sum(time.user + time.system for time in times)


def test_many_names_and_many_questions(baton: Baton) -> None:
    baton.run("for n in range(300): globals()[f'v{n}'] = [n]")
    baton.run("%%gpu\npass")  # starts the session
    began = processor_seconds(baton)
    assert baton.run("%%gpu\nsum(eval('v' + str(n))[0] for n in range(100))").result == "4950"
    assert len(baton.asked) == 100
    assert processor_seconds(baton) - began < 30
    assert (
        baton.run("%%gpu\nsum(v[0] for n, v in globals().items() if n[0] == 'v' and n[1:].isdigit())").result == "44850"
    )
    assert len(baton.asked) == 101
