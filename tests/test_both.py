"""`%%both`: a cell runs in the notebook and, before the next `%%gpu` cell, in each session of the notebook."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from end_to_end import Kernel, Service

LIBRARY = """
calls = []

def set_policy(name):
    calls.append(name)
    print("set", name)
"""


@pytest.fixture
def kernel(service: Service, new_kernel: Callable[..., Kernel]) -> Kernel:
    """Has an installed library that keeps its settings to itself."""
    started = service.kernel_with_library(new_kernel, LIBRARY)
    started.run("import library").ok()
    return started


def test_it_runs_in_both_and_shows_its_output_once(kernel: Kernel) -> None:
    cell = kernel.run("%%both\nlibrary.set_policy('a')\nlibrary.calls").ok()
    assert cell.outputs == [("stdout", "set a\n"), ("execute_result", "['a']")]
    remote = kernel.gpu("library.calls").ok()
    assert remote.outputs == [("execute_result", "['a']")]
    assert kernel.gpu("library.calls").ok().value == "['a']"


def test_each_new_session_runs_them_in_order(kernel: Kernel) -> None:
    for name in "ab":
        kernel.run(f"%%both\nlibrary.set_policy('{name}')").ok()
    assert kernel.gpu("library.calls").ok().value == "['a', 'b']"
    kernel.run("%%both\nlibrary.set_policy('c')").ok()
    assert kernel.gpu("library.calls").ok().value == "['a', 'b', 'c']"
    kernel.run("%gpu_reset").ok()
    assert kernel.gpu("library.calls").ok().value == "['a', 'b', 'c']"
    kernel.kill_session()
    assert kernel.gpu("library.calls").ok().value == "['a', 'b', 'c']"
    assert kernel.run("library.calls").ok().value == "['a', 'b', 'c']"
    assert "Cells under %%both, which each new session runs again: In[" in kernel.run("%gpu_status").ok().stdout


def test_the_notebooks_variables_count(kernel: Kernel) -> None:
    kernel.run("x, seen = 1, []").ok()
    kernel.run("%%both\nx = x + 1\nseen.append(x)\nmine = 5\nlibrary.set_policy(x)").ok()
    kernel.run("x, mine = 10, 6").ok()
    assert kernel.gpu("x, seen, mine, library.calls").ok().value == "(10, [2], 6, [2])"
    assert kernel.run("x, seen, mine").ok().value == "(10, [2], 6)"
    kernel.run("del mine").ok()
    assert kernel.gpu("mine").error == ("NameError", "name 'mine' is not defined")


def test_a_later_cell_finds_what_an_earlier_one_made(kernel: Kernel) -> None:
    kernel.run("def named(name):\n    return name + suffix\nsuffix = '!'").ok()
    kernel.run("%%both\ndef twice(name):\n    return named(name) * 2").ok()
    kernel.run("%%both\nlibrary.set_policy(twice('b'))").ok()
    assert kernel.gpu("library.calls").ok().value == "['b!b!']"


def test_what_goes_along_by_itself_is_as_in_the_notebook(kernel: Kernel) -> None:
    kernel.run("import numpy, random, os").ok()
    kernel.run("%%both\nnumpy.set_printoptions(precision=2)\nrandom.seed(1)\nos.environ['KIND'] = 'both'").ok()
    assert kernel.gpu("print(numpy.array([1 / 3]), os.environ['KIND'])").ok().stdout == "[0.33] both\n"
    kernel.run("numpy.set_printoptions(precision=4)\nrandom.seed(2)\nos.environ['KIND'] = 'other'").ok()
    kernel.run("%gpu_reset").ok()
    expected = kernel.evaluate("random.Random(2).random()")
    there = kernel.gpu("print(numpy.array([1 / 3]), os.environ['KIND'], random.random())").ok()
    assert there.stdout == f"[0.3333] other {expected}\n"
    assert kernel.run("print(numpy.array([1 / 3]), os.environ['KIND'])").ok().stdout == "[0.3333] other\n"


def test_an_error_is_an_ordinary_one_and_the_cell_is_not_noted(kernel: Kernel) -> None:
    failed = kernel.run("%%both\nlibrary.set_policy('a')\n1 / 0")
    assert failed.error == ("ZeroDivisionError", "division by zero")
    assert "----> 3 1 / 0" in failed.plain_traceback
    assert "baton_shim" not in failed.plain_traceback
    assert kernel.run("%%both\nx = = 1").error[0] == "SyntaxError"  # type: ignore[index]
    endless = kernel.begin("%%both\nprint('begun')\nwhile True:\n    pass")
    endless.wait_for_text("begun")
    kernel.interrupt()
    assert endless.finish().error[0] == "KeyboardInterrupt"  # type: ignore[index]
    there = kernel.gpu("library.calls").ok()
    assert there.value == "[]"
    assert there.stderr.startswith("hint: library.set_policy() of In[")  # it holds in the notebook only


def test_an_error_in_the_session_is_said_once_and_stops_nothing(kernel: Kernel) -> None:
    kernel.run("import sys").ok()
    cell = "%%both\nassert 'baton_shim.session.kernel' not in sys.modules, 'no'\nlibrary.set_policy('a')"
    number = int(kernel.run(cell).ok().reply["execution_count"])
    said = f"warning: The %%both cell In[{number}] failed in the session (AssertionError: no)\n"
    first = kernel.gpu("library.calls").ok()
    assert (first.stderr, first.value) == (said, "[]")
    assert kernel.gpu("library.calls").ok().stderr == ""
    kernel.run("%gpu_reset").ok()
    assert kernel.gpu("pass").ok().stderr == said


def test_a_refused_cell_changes_nothing(kernel: Kernel) -> None:
    kernel.run("%%both\nlibrary.set_policy('a')").ok()
    kernel.run("lines = open(library.__file__)").ok()
    assert kernel.gpu("lines.read()").error is not None
    assert kernel.gpu("library.calls").ok().value == "['a']"


def test_how_it_is_written(kernel: Kernel) -> None:
    assert kernel.run("# why\n\n%%both\nlibrary.set_policy('a')").ok().stdout == "set a\n"
    assert kernel.run("%%capture seen\n%%both\nlibrary.set_policy('b')").ok().outputs == []
    assert kernel.run("%%both\nimport asyncio\nawait asyncio.sleep(0)\n7").ok().value == "7"
    awaiting = kernel.gpu("library.calls").ok()
    assert awaiting.value == "['a', 'b']"
    assert "RuntimeError: a %%both cell cannot await in a session" in awaiting.stderr
    for wrong, said in {
        "%%both --quiet\npass": "%%both takes no options",
        "%%both\n%%time\npass": "%%both is above another cell magic",
        "%%gpu\n%%both\npass": "%%gpu is above %%both",
        "x = 1\n%%both\npass": "%%both is below other code",
    }.items():
        assert said in kernel.run(wrong).stderr
    assert "before the next %%gpu cell" in kernel.run("%both").ok().stdout
    assert kernel.client.complete("%%bot")
    reply = kernel.client.get_shell_msg(timeout=60)["content"]
    assert reply["matches"] == ["%%both"]


def test_a_kernel_without_baton_runs_it(new_kernel: Callable[..., Kernel]) -> None:
    plain = new_kernel("python3")
    plain.run("%load_ext baton_shim").ok()
    assert plain.run("%%both\n1 + 1").ok().value == "2"
