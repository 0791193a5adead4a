"""`Out[n]`, questions, errors and IPython's own features around a `%%gpu` cell."""

from __future__ import annotations

import re

import pytest
from end_to_end import Kernel

# ---- where %%gpu is recognised


@pytest.mark.parametrize(
    "front",
    [
        "%%gpu\n",
        "\n\n%%gpu\n",
        "# a comment\n%%gpu\n",
        "# %%\n\n%%gpu\n",
        "%%gpu \n",
        "%%time\n%%gpu\n",
        "%%gpu\n%%time\n",
    ],
)
def test_recognised(kernel: Kernel, front: str) -> None:
    here = kernel.evaluate("__import__('os').getpid()")
    result = kernel.run(f"{front}import os\nprint('pid', os.getpid())").ok()
    pid = re.search(r"pid (\d+)", result.stdout)
    assert pid is not None
    assert int(pid[1]) != here


def test_the_line_magic_explains_itself(kernel: Kernel) -> None:
    result = kernel.run("x = 1\n%gpu")
    assert "%%gpu" in str(result.outputs) + result.plain_traceback


def test_help(kernel: Kernel) -> None:
    (page,) = kernel.run("%%gpu?").ok().reply["payload"]
    assert "GPU" in page["data"]["text/plain"]


# ---- the value of the last expression


def test_the_last_value_is_out_and_underscore(kernel: Kernel) -> None:
    result = kernel.gpu("6 * 7").ok()
    assert result.value == "42"
    assert kernel.evaluate("_") == 42
    assert kernel.evaluate(f"Out[{result.reply['execution_count']}]") == 42
    assert kernel.gpu("_ + 1").ok().value == "43"


@pytest.mark.parametrize("body", ["6 * 7;", "None", "x = 5", "for _ in range(3):\n    'nothing'"])
def test_no_value(kernel: Kernel, body: str) -> None:
    assert kernel.gpu(body).ok().outputs == []


def test_a_rich_value(kernel: Kernel) -> None:
    result = kernel.gpu("import pandas\npandas.DataFrame({'a': [1, 2]})").ok()
    (content,) = result.of("execute_result")
    assert "<table" in content["data"]["text/html"]
    assert kernel.evaluate("_.a.tolist()") == [1, 2]


def test_a_value_that_cannot_travel_is_shown_all_the_same(kernel: Kernel) -> None:
    assert "<generator object" in (kernel.gpu("(n for n in [1, 2])").ok().value or "")


def test_execution_count_history_and_expressions(kernel: Kernel) -> None:
    first = kernel.gpu("x = 2").ok().reply["execution_count"]
    result = kernel.gpu("x += 1", user_expressions={"x": "x"}).ok()
    assert result.reply["execution_count"] == first + 1
    assert result.reply["user_expressions"]["x"]["data"]["text/plain"] == "3"
    assert kernel.evaluate(f"get_ipython().history_manager.input_hist_raw[{first}]") == "%%gpu\nx = 2"


def test_a_cell_that_leaves_no_history(kernel: Kernel) -> None:
    before = kernel.run("pass").ok().reply["execution_count"]
    kernel.gpu("y = 1\ny", store_history=False).ok()
    assert kernel.run("pass").ok().reply["execution_count"] == before + 1


# ---- questions


def test_input(kernel: Kernel) -> None:
    cell = kernel.begin("%%gpu\nname = input('Name? ')\nprint('Hello', name)", answers=["Ada"])
    assert cell.finish().ok().stdout == "Hello Ada\n"
    assert cell.questions == [{"prompt": "Name? ", "password": False}]
    assert kernel.evaluate("name") == "Ada"


def test_getpass(kernel: Kernel) -> None:
    cell = kernel.begin("%%gpu\nfrom getpass import getpass\nword = getpass('Word: ')", answers=["secret"])
    cell.finish().ok()
    assert cell.questions == [{"prompt": "Word: ", "password": True}]
    assert kernel.evaluate("word") == "secret"


def test_input_where_nobody_can_answer(kernel: Kernel) -> None:
    result = kernel.gpu("input()", allow_stdin=False)
    assert result.error is not None
    assert result.error[0] == "StdinNotImplementedError"


# ---- errors


def test_an_error_has_its_type_its_text_and_the_notebooks_line(kernel: Kernel) -> None:
    result = kernel.gpu("before = 1\n\ndef divide(a):\n    return a / 0\n\ndivide(before)\nafter = 1")
    assert result.error == ("ZeroDivisionError", "division by zero")
    count = result.reply["execution_count"]
    assert f"Cell In[{count}], line 7" in result.plain_traceback
    assert f"Cell In[{count}], line 5" in result.plain_traceback
    assert "----> 7 divide(before)" in result.plain_traceback
    assert kernel.evaluate("(before, 'after' in dir())") == (1, False)


def test_an_error_in_a_function_of_an_earlier_cell(kernel: Kernel) -> None:
    count = kernel.run("def fail():\n    raise LookupError('gone')").ok().reply["execution_count"]
    result = kernel.gpu("fail()")
    assert result.error == ("LookupError", "gone")
    assert f"Cell In[{count}], line 2" in result.plain_traceback
    assert "      1 %%gpu\n----> 2 " in result.plain_traceback


def test_an_error_of_the_students_own_class(kernel: Kernel) -> None:
    kernel.run(
        "class TooWarm(Exception):\n    def __init__(self, degrees, place):\n"
        "        super().__init__(f'{degrees} in {place}')\n        self.degrees = degrees"
    ).ok()
    kernel.run(
        "try:\n    get_ipython().run_cell_magic('gpu', '', \"raise TooWarm(40, 'Rome')\")\n"
        "except TooWarm as error:\n    caught = (str(error), error.degrees)"
    ).ok()
    assert kernel.evaluate("caught") == ("40 in Rome", 40)


def test_a_syntax_error(kernel: Kernel) -> None:
    result = kernel.gpu("x = 1\ny = = 2")
    assert result.error is not None
    assert result.error[0] == "SyntaxError"
    assert "line 3" in result.plain_traceback
    assert "y = = 2" in result.plain_traceback


def test_an_error_stops_the_cells_behind_it(kernel: Kernel) -> None:
    first = kernel.begin("%%gpu\n1 / 0", stop_on_error=True)
    second = kernel.begin("reached = True")
    assert first.finish().error is not None
    assert second.finish().reply["status"] == "aborted"
    assert kernel.evaluate("'reached' in dir()") is False


def test_exit_does_not_end_the_notebook(kernel: Kernel) -> None:
    kernel.run("kept = 1").ok()
    kernel.gpu("raise SystemExit")
    assert kernel.evaluate("kept") == 1
    assert kernel.gpu("kept + 1").ok().value == "2"


# ---- IPython inside and around


def test_time_before_and_after(kernel: Kernel) -> None:
    for front in ("%%time\n%%gpu\n", "%%gpu\n%%time\n"):
        result = kernel.run(f"{front}measured = 'yes'").ok()
        assert "Wall time:" in result.stdout
        assert kernel.evaluate("measured") == "yes"


def test_shell_commands_line_magics_and_await(kernel: Kernel) -> None:
    result = kernel.gpu(
        "!echo from the shell\nlines = !printf 'a\\nb'\nimport asyncio\nslept = await asyncio.sleep(0, 'woken')\n"
        "best = %timeit -n1 -r1 -q -o pass"
    ).ok()
    assert "from the shell" in result.stdout
    assert kernel.evaluate("(list(lines), slept, best.loops)") == (["a", "b"], "woken", 1)
