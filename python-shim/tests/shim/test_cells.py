"""`%%gpu` cells in a real notebook kernel, run by a real session kernel."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import msgpack
import pytest
from baton_shim.base import wire

if TYPE_CHECKING:
    from conftest import Baton


def test_state_goes_there_and_back(baton: Baton) -> None:
    baton.run("rows = [1, 2]\nsame = rows\ngone = 1\ntext = 'old'")
    cell = baton.run("%%gpu\nrows.append(3)\ntotal = sum(rows)\ndel gone\ntext = 'new'\nprint('there')")
    assert cell.reply["status"] == "ok", cell.traceback
    assert cell.text() == "there\n"
    assert baton.value("rows, same, total, text") == "([1, 2, 3], [1, 2, 3], 6, 'new')"
    assert baton.value("rows is same, 'gone' in globals()") == "(True, False)"


def test_the_session_is_another_process_and_stays_warm(baton: Baton) -> None:
    baton.run("import os")
    first = baton.run("%%gpu\nos.getpid()")
    again = baton.run("%%gpu\nos.getpid()")
    assert first.result == again.result != baton.value("os.getpid()")
    assert [call["state"]["messages"] for call in baton.calls] == [0, 2]


def test_functions_and_classes_bring_what_they_use(baton: Baton) -> None:
    baton.run("rate = 2\ndef scaled(x): return x * rate\nclass Model:\n    def run(self): return scaled(self.x)")
    baton.run("m = Model(); m.x = 21")
    assert baton.run("%%gpu\nm.run()").result == "42"
    baton.run("rate = 3")
    assert baton.run("%%gpu\nm.run()").result == "63"


def test_an_old_value_is_never_seen(baton: Baton) -> None:
    baton.run("x = 1")
    baton.run("%%gpu\nx")
    baton.run("x = 2")
    # Other ways to the dictionary, and the name itself, would fetch it.
    namespace = "type(sys).__dict__['__dict__'].__get__(sys.modules['__main__'])"
    hidden = f"%%gpu\nimport sys\n{namespace}.get('X'.lower(), 'not here')"
    assert baton.run(hidden).result == "'not here'"
    assert baton.run("%%gpu\nx").result == "2"


def test_a_name_that_the_cell_binds_anew_comes_home(baton: Baton) -> None:
    baton.run("x = [1]")
    baton.run("%%gpu\nx")
    baton.run("%%gpu\nx = [2]")
    assert baton.value("x") == "[2]"
    assert baton.run("%%gpu\nx").result == "[2]"


def test_deleted_names(baton: Baton) -> None:
    baton.run("x = [1]")
    baton.run("%%gpu\nx")
    baton.run("del x")
    assert baton.run("%%gpu\nx").error == "NameError: name 'x' is not defined"


def test_what_a_cell_only_deletes_does_not_travel(baton: Baton) -> None:
    baton.run("import numpy as np\nbig = np.zeros(300_000); steps = (n for n in [1])\nother = big[:2]; kept = [3]")
    assert baton.run("%%gpu\ndel big, steps\nif kept: pass\nelse: del kept").reply["status"] == "ok"
    assert baton.mover.bytes_moved == 0
    assert baton.value("[name in globals() for name in ('big', 'steps')], kept") == "([False, False], [3])"
    assert baton.run("big").error == baton.run("%%gpu\nbig").error == "NameError: name 'big' is not defined"
    assert baton.run("%%gpu\ndel big").error == "NameError: name 'big' is not defined"
    baton.run("%%gpu\nother, kept")
    baton.run("%%gpu\n1 / 0\ndel other")
    assert baton.run("%%gpu\ndel kept; float(other.sum())").result == baton.value("float(other.sum())") == "0.0"
    assert baton.value("'kept' in globals()") == "False"


def test_text_and_handlers_of_errors_delete(baton: Baton) -> None:
    baton.run("a = b = c = 1")
    assert (
        baton.run("%%gpu\nexec('del a')\nexec('del b')\ntry: 1 / 0\nexcept ZeroDivisionError as c: pass").reply[
            "status"
        ]
        == "ok"
    )
    assert baton.value("[name in globals() for name in 'abc']") == "[False, False, False]"


def test_unknown_name(baton: Baton) -> None:
    assert baton.run("%%gpu\nnobody + 1").error == "NameError: name 'nobody' is not defined"


# ---- the last value ----


def test_the_last_value(baton: Baton) -> None:
    baton.run("rows = [1]")
    cell = baton.run("%%gpu\nrows.append(2)\nrows")
    assert cell.result == "[1, 2]"
    number = cell.reply["execution_count"]
    assert baton.value(f"_ is rows, Out[{number}] is rows, _{number} is rows") == "(True, True, True)"
    assert baton.run("%%gpu\n_[0]").result == "1"


@pytest.mark.parametrize("code", ["x = 1", "1;", "1;  # quiet", "None", "# nothing"])
def test_no_value(baton: Baton, code: str) -> None:
    cell = baton.run(f"%%gpu\n{code}\n")
    assert cell.reply["status"] == "ok", cell.traceback
    assert cell.result is None


def test_every_value_that_a_cell_shows_is_one_of_the_last_values(baton: Baton) -> None:
    baton.run("get_ipython().ast_node_interactivity = 'all'\nmade = [1]\n0")
    baton.run("%%gpu\nmade\n'two'\nNone\n'three'")
    assert baton.value("(_, __, ___ is made)") == "('three', 'two', True)"
    baton.run("get_ipython().ast_node_interactivity = 'last_expr'")


def test_the_value_looks_as_in_the_session(baton: Baton) -> None:
    baton.run("class A:\n    def _repr_html_(self):\n        import os\n        return f'<b>{os.getpid()}</b>'")
    cell = baton.run("%%gpu\na = A()\na")
    there = baton.run("%%gpu\nimport os\nos.getpid()").result
    (result,) = cell.all("execute_result")
    assert result["data"]["text/html"] == f"<b>{there}</b>"
    assert baton.run("a").all("execute_result")[0]["data"]["text/html"] != f"<b>{there}</b>"


def test_a_value_that_must_stay(baton: Baton) -> None:
    cell = baton.run("%%gpu\nsteps = (n for n in [10, 20])\nsteps")
    assert cell.reply["status"] == "ok", cell.traceback
    assert "generator object" in str(cell.result)
    assert "steps" in baton.run("next(steps)").error
    assert baton.run("%%gpu\nnext(steps)").result == "10"
    assert baton.run("%%gpu\nnext(_steps if False else steps)").result == "20"


def test_silent_cells(baton: Baton) -> None:
    cell = baton.run("%%gpu\nx = 5\nx", silent=True, store_history=False)
    assert cell.messages == []
    assert baton.value("x") == "5"


@pytest.mark.parametrize("first_line", ["%%gpu\n", ""])
def test_output_of_programs_belongs_to_the_cell_that_runs_them(baton: Baton, first_line: str) -> None:
    program = "import os, subprocess\nos.write(2, 'grün\\n'.encode())\nsubprocess.run(['seq', '3000'])\nNone"
    numbers = "".join(f"{number}\n" for number in range(1, 3001))
    for _ in range(10):
        cell = baton.run(first_line + program)
        assert (cell.text(), cell.text("stderr")) == (numbers, "grün\n")
        assert baton.run(first_line + "print('next')").text() == "next\n"


# ---- errors ----


@pytest.mark.parametrize("first_line", ["", "%%gpu\n"])
def test_all_that_a_large_pipe_holds_belongs_to_the_cell(baton: Baton, first_line: str) -> None:
    """Pipes are this large on machines with pages of 64 KiB."""
    cell = baton.run(
        f"{first_line}import fcntl, os, sys\nout, size = sys.stdout, 1 << 20\n"
        "fcntl.fcntl(out._fid, fcntl.F_SETPIPE_SZ, size)\n"
        "with out._reading: os.write(1, b'x' * (size // 2))\nout.flush()\nwith out._reading: left = out._has_bytes(0)\nleft"
    )
    assert (cell.result, len(cell.text())) == ("False", 1 << 19)


def test_an_error_keeps_type_lines_and_the_state_so_far(baton: Baton) -> None:
    baton.run(
        "class Mine(ValueError):\n    def __init__(self, a, b):\n        super().__init__(f'{a}-{b}'); self.a = a"
    )
    baton.run("def check():\n    raise Mine(1, 2)")
    cell = baton.run("# why\n%%gpu\nx = 1\n\ncheck()\ny = 2")
    assert cell.error == "Mine: 1-2"
    assert "Cell In[3], line 5" in cell.traceback
    assert "Cell In[2], line 2, in check()" in cell.traceback
    assert "raise Mine(1, 2)" in cell.traceback
    assert baton.value("x, 'y' in globals()") == "(1, False)"
    assert "Cell In[3], line 5" in baton.run("%tb").traceback


def test_an_exception_can_be_caught_by_its_class(baton: Baton) -> None:
    baton.run("class Mine(ValueError): pass")
    run = "get_ipython().run_cell_magic('gpu', '', '{}')"
    catch = "try:\n    RUN\nexcept {} as error:\n    print(type(error).__name__, error)".replace("RUN", run)
    assert baton.run(catch.format("raise Mine(3)", "Mine")).text() == "Mine 3\n"
    assert baton.run(catch.format("{}[1]", "KeyError")).text() == "KeyError 1\n"
    assert baton.run(catch.format('open("/missing")', "FileNotFoundError")).text().startswith("FileNotFoundError")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import sys; sys.exit()", "SystemExit: "),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: "),
        ("raise ExceptionGroup('two', [ValueError(1), TypeError(2)])", "ExceptionGroup: two (2 sub-exceptions)"),
        ("assert False, 'no'", "AssertionError: no"),
        ("'a'.b", "AttributeError: 'str' object has no attribute 'b'"),
        (
            "b'\\xff'.decode()",
            "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        ),
        ("%nosuchmagic", "UsageError"),
    ],
)
def test_every_kind_of_exception_ends_the_cell_only(baton: Baton, code: str, error: str) -> None:
    cell = baton.run(f"%%gpu\n{code}")
    assert cell.reply["status"] == "error"
    assert f"{cell.reply['ename']}: {cell.reply['evalue']}".startswith(error)
    if error == "UsageError":
        assert cell.text("stderr").count("nosuchmagic") == 1
    else:
        assert len(cell.all("error")) == 1
        assert "line 2" in cell.traceback or error.startswith("SystemExit")
    assert baton.run("%%gpu\n1").result == "1"


def test_an_error_that_has_no_text_shows_the_lines_of_the_cell(baton: Baton) -> None:
    baton.run("class Weird(Exception):\n    def __str__(self): return 1 / 0")
    cell = baton.run("%%gpu\nx = 5\nraise Weird()")
    assert cell.reply["ename"] == "Weird"
    assert "raise Weird()" in cell.traceback
    assert "baton_shim" not in cell.traceback
    assert baton.value("x") == "5"


@pytest.mark.parametrize(
    ("lines", "left_out"),
    [
        ("['first', *[''] * 1_000_000, 'last']", "Baton left out 990002 lines here"),
        ("['first' + 'x' * (64 << 20), 'last']", "Baton left out 65011717 characters here"),
    ],
    ids=["lines", "characters"],
)
def test_an_error_that_no_message_can_hold_is_shortened(baton: Baton, lines: str, left_out: str) -> None:
    baton.run(f"class Own(Exception): _render_traceback_ = lambda self: {lines}")
    cell = baton.run("%%gpu\nkept = 1\nraise Own")
    assert cell.traceback.startswith("first")
    assert cell.traceback.endswith("last")
    assert left_out in cell.traceback
    assert len(cell.traceback) < 5 << 20
    assert baton.value("kept") == "1"


def test_an_error_with_a_message_that_is_too_long() -> None:
    error = wire.remote_error("ValueError", "x" * (64 << 20), ["ValueError", "x" * (64 << 20)])
    assert error["value"].endswith("xxx[Baton left out 62914560 characters here]")
    assert len(msgpack.packb(error)) < 9 << 20


def test_a_syntax_error_needs_no_gpu(baton: Baton) -> None:
    cell = baton.run("%%gpu\nx = 1\nx = = 2")
    assert cell.error.startswith("SyntaxError: invalid syntax")
    assert "Cell In[1], line 3" in cell.traceback
    assert baton.calls == []


def test_an_exit_warns_as_in_any_cell(baton: Baton) -> None:
    cell = baton.run("%%gpu\nimport sys, warnings\nfilters = len(warnings.filters)\nsys.exit(3)")
    assert cell.text("stderr").count("UserWarning: To exit: use") == 1
    assert baton.run("%%gpu\nlen(warnings.filters) == filters").result == "True"


def test_exit_ends_neither_kernel(baton: Baton) -> None:
    cell = baton.run("%%gpu\nexit()")
    assert cell.reply["status"] == "ok"
    assert "do not end the notebook or its session" in cell.text("stderr")
    assert baton.run("%%gpu\n1").result == "1"


def test_a_function_of_a_gpu_cell_shows_its_source_at_home(baton: Baton) -> None:
    baton.run("%%gpu\ndef broken():\n    return 1 / 0")
    cell = baton.run("broken()")
    assert "Cell In[1], line 3, in broken()" in cell.traceback
    assert "return 1 / 0" in cell.traceback


def test_errors_abort_the_cells_behind(baton: Baton) -> None:
    client = baton.notebook.client
    sent = threading.Event()
    baton.before_finish = lambda: sent.wait(100)
    client.execute("%%gpu\n1/0")
    behind = client.execute("x = 1")
    # The kernel answers this while the first cell runs. By then, it also has the second cell, which was sent before.
    client.control_channel.send(client.session.msg("kernel_info_request", {}))
    client.get_control_msg(timeout=100)
    sent.set()
    reply = client.get_shell_msg(timeout=100)
    while reply["parent_header"].get("msg_id") != behind:
        reply = client.get_shell_msg(timeout=100)
    assert reply["content"]["status"] == "aborted"


# ---- what cannot be sent, and services that fail ----


def test_state_that_cannot_travel_is_named(baton: Baton) -> None:
    baton.run("steps = (n for n in [1]); x = 1")
    cell = baton.run("%%gpu\nx = 2\nnext(steps)")
    assert cell.error == "StateRefused: 'steps' is a generator and cannot move to the GPU machine"
    lines = cell.traceback.splitlines()
    assert lines[1] == "hint: create it inside the cell, or turn it into a list first"
    assert lines[2] == "Your variables are as they were before the cell"
    assert baton.calls == []
    assert baton.run("%%gpu\nx").result == "1"


LIARS = {
    "new": "class H:\n    def __new__(cls, *a): return object.__new__(cls) if a else a[0]\n    def __getnewargs__(self): return ()\nx = H(1)",
    "set": "class H:\n    def __setstate__(self, state): raise ValueError('no state')\nx = H(); x.a = 1",
    "reduce": "def f(): raise KeyError('built')\nclass H:\n    def __reduce__(self): return f, ()\nx = H()",
}


@pytest.mark.parametrize("code", LIARS.values(), ids=LIARS)
def test_what_cannot_be_rebuilt_is_named(baton: Baton, code: str) -> None:
    baton.run(f"{code}\nheld = [x]; other = [1]")
    for name, path in (("x", "x"), ("held", "held[0]")):
        cell = baton.run(f"%%gpu\nother.append({name})")
        assert cell.error.startswith(f"StateRefused: '{path}' could not be restored on the GPU machine ("), cell.error
        assert f"hint: create it inside the cell, or leave it out: %%gpu --drop {name}" in cell.traceback
    assert baton.run("%%gpu\nother.append(2); other").result == "[1, 2]"


def test_what_only_the_session_cannot_rebuild_is_named(baton: Baton) -> None:
    baton.run(
        "import os\nhome = os.getpid()\nclass H:\n    def __setstate__(self, state):\n        self.a = 1\n"
        "        if os.getpid() != home: raise ValueError('not here')\n"
        "held = {'k': [1]}; other = [1]"
    )
    assert baton.run("%%gpu\nlen(held)").result == "1"
    baton.run("held['k'].append(H()); held['k'][1].a = 2")
    cell = baton.run("%%gpu\nother.append(held)")
    what = "'held['k'][1]' could not be restored on the GPU machine (ValueError: not here)"
    assert cell.error == f"StateRefused: {what}"
    assert "%%gpu --drop held" in cell.traceback
    assert baton.run("%%gpu\nother.append(2); other").result == "[1, 2]"


def test_classes_show_no_trace_of_having_been_sent(baton: Baton) -> None:
    look = "sorted(vars(A)), dir(a) == sorted({*dir(A), 'n'})"
    make = "class A:\n    def __init__(self): self.n = 1\na = A()"
    expected = baton.run(f"{make}\n{look}").result
    for cell in ("%%gpu\nb = A(); b.m = a", "%%gpu\na.n = 2", f"%%gpu\n{make}"):
        assert baton.run(f"{cell}\n{look}").result == expected
        assert baton.run(look).result == expected


BOUND_ANEW = [
    # What an ordinary cell left, the cell that rebinds it, and its value.
    ("f = open('a.txt', 'w'); f.write('old'); f.flush()", "with open('a.txt') as f: text = f.read()\ntext", "'old'"),
    ("f = (n for n in [1])", "f = (n for n in [2, 3])\nlist(f)", "[2, 3]"),
    ("import threading as f\nf = f.Thread()", "import math as f\nf.floor(2.5)", "2"),
    ("f = (n for n in [1])", "for f in [4, 5]: last = f\nlast", "5"),
    ("f = (n for n in [1])", "%time f = 7\nf", "7"),
    ("f = (n for n in [1])", "del f\n'f' in dir()", "False"),
    ("f = (n for n in [1])\ndef g():\n    global f\n    f = 8", "g()\nf", "8"),
    ("f = (n for n in [1])", "if 1: f = 9\nf", "9"),
    ("f = (n for n in [1])", "try: 1 / 0\nexcept ZeroDivisionError as f: said = str(f)\nsaid", "'division by zero'"),
]


@pytest.mark.parametrize(("before", "cell", "value"), BOUND_ANEW)
def test_a_name_that_the_cell_binds_anew_is_not_refused_for_its_old_value(
    baton: Baton, before: str, cell: str, value: str
) -> None:
    baton.run(before)
    ran = baton.run(f"%%gpu\n{cell}")
    assert (ran.all("error"), ran.result) == ([], value)


def test_a_name_that_may_be_used_is_refused_where_it_is_used(baton: Baton) -> None:
    baton.run("steps = (n for n in [1, 2]); same = steps; wanted = False; held = 0")
    assert baton.run("%%gpu\nif wanted: next(steps)\nheld = 1").reply["status"] == "ok"
    cell = baton.run("%%gpu\nheld = [steps]\nif not wanted: next(steps)")
    assert cell.error == "StateRefused: 'steps' is a generator and cannot move to the GPU machine"
    cell = baton.run("%%gpu\nheld = 2\nif not wanted: next(steps)")
    assert cell.error == "StandInError: 'steps' is a generator and cannot move to the GPU machine"
    assert "hint: create it inside the cell, or turn it into a list first" in cell.traceback
    assert baton.value("held, steps is same, next(steps)") == "(2, True, 1)"
    baton.run("%%gpu\nif not wanted: held = steps")
    assert baton.value("held is same, next(steps)") == "(True, 2)"


def test_a_name_keeps_its_old_value_where_the_cell_fails_first(baton: Baton) -> None:
    baton.run("f = (n for n in [1]); x = [1]; same = x")
    baton.run("%%gpu\nx")
    cell = baton.run("%%gpu\nbefore = 1\n1 / 0\nf = 2\nx = 3")
    assert cell.error == "ZeroDivisionError: division by zero"
    assert baton.value("before, next(f), x is same") == "(1, 1, True)"
    assert baton.run("%%gpu\nx = [2]\ndel x\n'x' in dir()").result == "False"
    assert baton.value("'x' in globals(), same") == "(False, [1])"


def test_a_part_that_stayed_at_home(baton: Baton) -> None:
    baton.run("class Loader: pass\nloader = Loader()\nloader.size = 3\nloader.steps = (n for n in [1])")
    assert baton.run("%%gpu\nloader.size").result == "3"
    cell = baton.run("%%gpu\nnext(loader.steps)")
    assert "'loader.steps' is a generator" in cell.error
    assert cell.traceback.splitlines()[-1].startswith("hint: ")


GOES_ON = [
    # How it is created, how it continues, and what that prints.
    ("def made():\n  for n in range(9): yield n * scale\nx = made()", "print(next(x), next(x))", "0 3"),
    ("x = map(lambda n: n + scale, [1])\nx = [x, (grown(n) for n in [1])]", "print(next(x[1]))", "4"),
    (
        "from contextlib import contextmanager\n@contextmanager\ndef made():\n  yield\n  print(grown(1))\n"
        "x = made(); x.__enter__()",
        "_ = x.__exit__(None, None, None)",
        "4",
    ),
    ("import threading\ndef made(): print(grown(1))\nx = threading.Thread(target=made)", "x.start(); x.join()", "4"),
    (
        "import threading\ngo = threading.Event(); x = threading.Thread(target=lambda: (go.wait(), print(grown(1))))\n"
        "x.start()",
        "go.set(); x.join()",
        "4",
    ),
    (
        "import asyncio\ngo = asyncio.Event()\nasync def made():\n  await go.wait()\n  print(grown(1))\n"
        "x = asyncio.ensure_future(made())",
        "go.set(); await x",
        "4",
    ),
]


@pytest.mark.parametrize(("making", "going_on", "printed"), GOES_ON)
def test_what_stays_in_the_session_finds_the_names_that_it_uses(
    baton: Baton, making: str, going_on: str, printed: str
) -> None:
    baton.run("scale = 2\ndef grown(n): return n + scale")
    baton.run(f"%%gpu\n{making}")
    baton.run("scale = 3")
    assert baton.run("%%gpu\nother = 1").reply["status"] == "ok"
    cell = baton.run(f"%%gpu\n{going_on}")
    assert (cell.all("error"), cell.text()) == ([], f"{printed}\n")


def test_a_failed_service(baton: Baton) -> None:
    baton.run("x = [1]")
    baton.run("%%gpu\nx")
    error = {"name": "GpuServiceError", "value": "The worker is gone", "traceback": [], "hint": "run it again"}
    baton.fail_with = {"outcome": "worker_lost", "error": error}
    cell = baton.run("%%gpu\nx.append(2)")
    assert cell.error == "GpuServiceError: The worker is gone"
    assert cell.traceback.splitlines()[1:] == ["hint: run it again", "Your variables are as they were before the cell"]
    baton.fail_with = None
    assert baton.run("%%gpu\nx").result == "[1]"
    assert [call["state"]["messages"] for call in baton.calls] == [0, 2, 0]


def test_staff_stop_a_waiting_cell(baton: Baton) -> None:
    hint = "ask your course staff before you run it again"
    error = {"name": "CellStopped", "value": "tia stopped this cell before it ran", "traceback": [], "hint": hint}
    baton.fail_with = {"outcome": "cancelled", "error": error}
    cell = baton.run("%%gpu\n1")
    assert cell.error == "CellStopped: tia stopped this cell before it ran"
    assert f"hint: {hint}" in cell.traceback.splitlines()


def test_a_session_that_vanished_is_rebuilt(baton: Baton) -> None:
    baton.run("x = [1]\ndef grow(): x.append(len(x) + 1)")
    baton.run("%%gpu\ngrow()")
    baton.lose_session()
    assert baton.run("%%gpu\ngrow(); x").result == "[1, 2, 3]"
    assert baton.value("x") == "[1, 2, 3]"


def test_what_lived_in_a_session_that_vanished(baton: Baton) -> None:
    baton.run("%%gpu\nsteps = (n for n in [1])")
    baton.lose_session()
    cell = baton.run("%%gpu\nnext(steps)")
    assert cell.error.startswith("StateRefused: 'steps'")
    assert "run the cell that made it again" in cell.traceback
    assert baton.run("%%gpu\n1").result == "1"


def test_a_package_that_the_session_lacks(baton: Baton) -> None:
    module = baton.folder / "site-packages/only_here.py"
    module.parent.mkdir()
    module.write_text("value = 1")
    baton.run("import sys; sys.path.append('site-packages'); import only_here")
    module.rename(baton.folder / "moved.txt")
    cell = baton.run("%%gpu\nonly_here.value")
    assert cell.error == (
        "ModuleNotFoundError: Package 'only_here' is used here but is not installed on the GPU machine"
    )
    assert baton.run("%%gpu\n1").result == "1"


# ---- memory ----


def test_arrays_move_as_memory(baton: Baton) -> None:
    baton.run("import numpy as np\nbase = np.zeros(300_000)\nhalf = base[::2]")
    cell = baton.run("%%gpu\nhalf[1] = 7\nbase.sum()")
    assert cell.reply["status"] == "ok", cell.traceback
    assert baton.value("float(base[2]), half.base is base") == "(7.0, True)"
    moved = baton.mover.bytes_moved
    assert baton.run("%%gpu\nfloat(base.sum())").result == "7.0"
    assert baton.mover.bytes_moved == moved


def test_code_that_python_does_not_read(baton: Baton) -> None:
    cell = baton.run("%%gpu\nx = '\x00'")
    assert cell.reply["ename"] in ("SyntaxError", "ValueError")
    assert "null bytes" in cell.traceback
    assert baton.calls == []


def test_the_shell_and_the_kernel_mean_the_other_ones(baton: Baton) -> None:
    baton.run("ip = get_ipython()\ndef there(): return ip is get_ipython(), type(ip).__name__")
    assert baton.run("%%gpu\nthere()").result == "(True, 'ZMQInteractiveShell')"
    assert baton.run("%%gpu\nmine = get_ipython()").reply["status"] == "ok"
    assert baton.value("mine is ip is get_ipython()") == "True"


@pytest.mark.parametrize("magic", ["", "%%gpu\n"])
@pytest.mark.parametrize(
    ("backend", "kinds"),
    [("", ["image/png", "text/plain"]), ("import matplotlib; matplotlib.use('agg')\n", ["text/plain"])],
)
def test_a_figure_as_a_value(baton: Baton, magic: str, backend: str, kinds: list[str]) -> None:
    baton.run(f"{magic}{backend}import matplotlib.pyplot as plt\nfig, ax = plt.subplots()")
    for showing in ("%%gpu\nfig", "fig", "%%gpu\nfig"):
        (value,) = baton.run(showing).all("execute_result")
        assert sorted(value["data"]) == kinds


def test_inline_figures(baton: Baton) -> None:
    cell = baton.run("%%gpu\nimport matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot([1, 2]);")
    assert cell.reply["status"] == "ok", cell.traceback
    assert [sorted(content["data"]) for content in cell.all("display_data")] == [["image/png", "text/plain"]]
    assert baton.run("print(len(ax.lines))").text() == "1\n"


def test_a_mark_of_the_notebook_is_no_mark_of_a_library(baton: Baton) -> None:
    """`multiprocessing`, which most libraries load, gives the notebook's module a second name."""
    baton.run("import multiprocessing\nMISSING = object()\nkept = [MISSING]")
    cell = baton.run("%%gpu\nmore = [MISSING, kept[0]]\nOTHER = object()")
    assert (cell.all("error"), cell.text("stderr")) == ([], "")
    assert baton.value("all(one is MISSING for one in more), OTHER is MISSING") == "(True, False)"
