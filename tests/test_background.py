"""`%%gpu --background`: the notebook continues, and always looks as if its cells had run one after another."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from typing import Any

import pytest
from end_to_end import Gate, Kernel, Place, Service, background, speaking, wait_until


def test_the_notebook_goes_on_and_gets_the_changes(kernel: Kernel, gate: Gate) -> None:
    kernel.run("values = [1]; other = [1]").ok()
    cell = background(
        kernel, f"print('begun')\n{gate.closed()}values.append(2)\nnew = 'made'\nprint('end')\nlen(values)"
    )
    cell.wait_for_text("begun")
    assert kernel.run("other.append(2); other, job.status, job.done()").ok().value == "([1, 2], 'running', False)"
    gate.open()
    assert kernel.run("job.result()").ok().value == "2"
    assert kernel.evaluate("(values, new, other)") == ([1, 2], "made", [1, 2])
    assert kernel.evaluate("job.status, job.done()") == ("done", True)
    cell.wait_for_text("end")
    assert kernel.gpu("values.append(len(other))\nvalues").ok().value == "[1, 2, 2]"


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("len(values)", id="a name"),
        pytest.param("values = 5", id="binding a name"),
        pytest.param("del values", id="deleting a name"),
        pytest.param("print(new)", id="a name that it makes"),
        pytest.param("len(alias)", id="an alias"),
        pytest.param("len(nested['deep'][0])", id="inside of a container"),
        pytest.param("view[0] = 1", id="a view of an array"),
        pytest.param("half[0]", id="a view that the cell was not given"),
        pytest.param("look()", id="a function that uses it"),
        pytest.param("closure()", id="a closure"),
        pytest.param("bound()", id="a method of Python's"),
        pytest.param("add(3)", id="a built-in method"),
        pytest.param("next(generator)", id="a generator"),
        pytest.param("eval('value' + 's')", id="text"),
        pytest.param("globals()['values']", id="the namespace"),
        pytest.param("parameter.sum()", id="a tensor"),
        pytest.param("held.result().append(3)", id="the result of an earlier cell"),
        pytest.param("%whos", id="a magic that shows all variables"),
        pytest.param("%time len(values)", id="a magic that runs code"),
        pytest.param("return values", id="code that does not compile"),
        pytest.param("loss", id="a graph"),
    ],
)
def test_code_that_touches_what_is_lent_waits(kernel: Kernel, gate: Gate, code: str) -> None:
    kernel.run(
        "import numpy as np, torch\nvalues = [[1]]; alias = values; nested = {'deep': (values,)}\n"
        "array = np.zeros(1000); view = array[1:]; half = array[::2]\n"
        "def look(): return values\n"
        "def closing(inner): return lambda: inner\n"
        "closure = closing(values); bound = values.__len__; add = values.append\n"
        "generator = (n for n in values)\n"
        "parameter = torch.zeros(3, requires_grad=True); weights = parameter.data\n"
        "loss = (parameter * 2).sum()"
    ).ok()
    background(kernel, "values", "held")
    kernel.run("held.result()").ok()
    body = f"{gate.closed()}values.append(2); array[1] = 7; weights[0] = 1; new = 1"
    background(kernel, body)
    cell = kernel.begin(code)
    cell.wait_for(lambda result: "which runs in the background" in result.stderr, "it waits")
    assert not cell.done
    gate.open()
    cell.finish()
    assert kernel.evaluate("job.status") == "done"


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("other.append(1); made = other", id="other variables"),
        pytest.param("import numpy as np; np.ones(3).sum()", id="a library that it uses"),
        pytest.param("helper(3)", id="a function that it uses"),
        pytest.param("Point()", id="a class that it uses"),
        pytest.param("number + 1", id="a number that it was given"),
        pytest.param("text.upper(), pair", id="a text and a tuple that it was given"),
        pytest.param("untouched[0] = 1; untouched", id="another array"),
        pytest.param("job", id="its handle"),
        pytest.param("%gpu_jobs", id="the list of cells"),
        pytest.param("%gpu_status", id="the status"),
        pytest.param("def new_function(): return other\nnew_function()", id="a new function"),
        pytest.param("for n in range(3): print(n)", id="a loop"),
        pytest.param("%time other.append(1)", id="a magic that runs code"),
        pytest.param("%matplotlib inline", id="a magic that sets something"),
        pytest.param("!echo hello", id="a command"),
    ],
)
def test_all_other_code_runs(kernel: Kernel, gate: Gate, code: str) -> None:
    kernel.run(
        "import numpy as np\nvalues, other = [1], [2]; array, untouched = np.zeros(10), np.zeros(10)\n"
        "number, text, pair = 5, 'text', (1, 'a')\n"
        "def helper(n): return n + 1\n"
        "class Point:\n    def __init__(self): super().__init__()\n    def far(self): return helper(1)\n"
    ).ok()
    body = f"{gate.closed()}values.append(helper(number)); array[1] = np.pi; point = Point(); (text, pair)"
    background(kernel, body)
    result = kernel.run(code).ok()
    assert "Waiting" not in result.stderr
    assert "running" in kernel.run("%gpu_jobs").ok().stdout
    gate.open()
    kernel.run("job.result()").ok()
    assert kernel.evaluate("values") == [1, 6]


def test_several_run_in_their_order_and_land_in_it(kernel: Kernel, gate: Gate) -> None:
    kernel.run("values, other = [], []").ok()
    background(kernel, f"{gate.closed()}values.append(1); last = 1", "first")
    background(kernel, "values.append(2); last += 1; last", "second")
    background(kernel, "values.append(3); last *= 10; last", "third")
    assert kernel.run("other.append(1); first, second, third").ok().value.count("waiting") == 2
    waits = kernel.begin("values")
    waits.wait_for(lambda result: "Waiting" in result.stderr, "it waits")
    gate.open()
    assert waits.finish().ok().value == "[1, 2, 3]"
    assert kernel.evaluate("[first.result(), second.result(), third.result(), last]") == [None, 2, 20, 20]


def test_a_cell_in_the_foreground_waits_for_those_in_the_background(kernel: Kernel, gate: Gate) -> None:
    background(kernel, f"{gate.closed()}made = 1")
    cell = kernel.begin("%%gpu\n5")
    cell.wait_for(lambda result: "Waiting" in result.stderr, "it waits")
    gate.open()
    cell.finish().ok()
    assert kernel.evaluate("made") == 1


def test_an_interrupt_stops_the_waiting_and_not_the_background_cell(kernel: Kernel, gate: Gate) -> None:
    kernel.run("values = []").ok()
    background(kernel, f"{gate.closed()}values.append(1)")
    for code in ("values", "job.result()", "%%gpu\nvalues", "%gpu_undo", "%gpu_jobs --cancel 8f62a1b3"):
        cell = kernel.begin(code)
        cell.wait_for(lambda result: "Waiting" in result.stderr, "it waits")
        kernel.interrupt()
        error = cell.finish().error
        assert error is not None
        assert error[0] == "KeyboardInterrupt"
        assert "%gpu_jobs --cancel" in cell.so_far.plain_traceback
    gate.open()
    kernel.run("job.result(timeout=100)").ok()
    assert kernel.evaluate("values") == [1]


def test_an_error_is_shown_below_its_cell_and_raised_by_its_handle(kernel: Kernel) -> None:
    kernel.run("values = []").ok()
    cell = background(kernel, "values.append(1)\nvalues[5]")
    error = cell.wait_for(lambda result: result.error, "the error").error
    assert error is not None
    assert error[0] == "IndexError"
    raised = kernel.run("job.result()")
    assert "IndexError: list index out of range" in raised.plain_traceback
    assert kernel.evaluate("values, job.status, type(job.exception()).__name__") == ([1], "failed", "IndexError")
    assert kernel.gpu("values").ok().value == "[1]"


def test_one_is_cancelled_as_it_runs_or_waits(kernel: Kernel, gate: Gate) -> None:
    kernel.run("values = []").ok()
    cell = background(kernel, f"values.append(1)\nprint('begun')\n{gate.closed()}values.append(2)", "first")
    background(kernel, "values.append(3)", "second")
    cell.wait_for_text("begun")
    kernel.run("second.cancel()").ok()
    assert kernel.evaluate("second.status") == "cancelled"
    number = kernel.evaluate("first.number")
    assert "being cancelled" in kernel.run(f"%gpu_jobs --cancel {number}").ok().stdout
    assert kernel.run("first.result()").error[0] == "KeyboardInterrupt"  # type: ignore[index]
    assert kernel.evaluate("values, first.status") == ([1], "cancelled")
    refused = kernel.run(f"%gpu_jobs --cancel {number}")
    assert "is not running in the background" in refused.stderr
    assert kernel.gpu("values.append(4); values").ok().value == "[1, 4]"


def test_a_name_that_only_shows_while_it_runs_is_lent_from_then_on(kernel: Kernel, gate: Gate) -> None:
    kernel.run("hidden = [1]; calls = {}\ndef look(): return hidden").ok()
    body = "import sys\nname = 'hid' + 'den'\nfound = getattr(sys.modules['__main__'], name)\nprint('found')\n"
    cell = background(kernel, f"{body}{gate.closed()}found.append(2)")
    cell.wait_for_text("found")
    waits = kernel.begin("hidden.append(3)")
    waits.wait_for(lambda result: "Waiting" in result.stderr, "it waits")
    gate.open()
    waits.finish().ok()
    assert kernel.evaluate("hidden") == [1, 2, 3]


def test_settings_that_the_notebook_changed_meanwhile_stay(kernel: Kernel, gate: Gate) -> None:
    kernel.run("import random, numpy as np, decimal\nrandom.seed(1); np.random.seed(1)").ok()
    body = "random.random(); np.random.rand(); decimal.getcontext().prec = 7\nnp.set_printoptions(precision=2)\n"
    background(kernel, body + gate.closed())
    kernel.run("random.seed(5); np.set_printoptions(precision=3)").ok()
    gate.open()
    kernel.run("job.result()").ok()
    expected = kernel.run("import random as own; generator = own.Random(5); generator.random()").ok().value
    assert kernel.run("random.random()").ok().value == expected
    assert kernel.evaluate("np.get_printoptions()['precision'], decimal.getcontext().prec") == (3, 7)
    # The notebook has not used numpy's generator, so the cell's use of it takes effect.
    second = "float(np.random.RandomState(1).rand(2)[1])"
    assert kernel.run(f"float(np.random.rand()) == {second}").ok().value == "True"
    kernel.run("decimal.getcontext().prec = 28; np.set_printoptions(precision=8)").ok()


def test_what_lands_while_the_kernel_is_idle_is_there_for_the_next_cell(kernel: Kernel) -> None:
    kernel.run("import decimal, numpy as np").ok()
    cell = background(kernel, "decimal.getcontext().prec = 9; np.seterr(all='raise'); made = 3\nprint('end'); made")
    cell.wait_for(lambda result: "3" in str(result.outputs), "the value is shown below the cell")
    assert kernel.evaluate("decimal.getcontext().prec, np.geterr()['over'], made") == (9, "raise", 3)
    assert kernel.gpu("decimal.getcontext().prec, np.geterr()['over']").ok().value == "(9, 'raise')"
    kernel.run("decimal.getcontext().prec = 28; np.seterr(all='warn')").ok()


def test_values_that_it_shows_belong_to_no_other_cell(kernel: Kernel) -> None:
    kernel.run("%config InteractiveShell.ast_node_interactivity = 'all'").ok()
    shown = background(kernel, "1\n2")
    mine = kernel.run("'mine'").ok().reply["execution_count"]
    assert kernel.evaluate("job.result()") == 2
    shown.wait_for(lambda result: [text for _, text in result.outputs] == ["1", "2"], "both values are shown")
    assert kernel.evaluate(f"Out[{mine}], _{mine}") == ("mine", "mine")
    kernel.run("%config InteractiveShell.ast_node_interactivity = 'last_expr'").ok()


def test_a_plot_is_shown_below_its_cell(kernel: Kernel) -> None:
    kernel.run("%matplotlib inline\nimport matplotlib.pyplot as plt").ok()
    cell = background(kernel, "plt.plot([1, 2]); print('drawn')")
    cell.wait_for(lambda result: "image/png" in str(result.published), "the plot")


def test_nothing_lands_in_the_middle_of_a_cell_that_awaits(kernel: Kernel, place: Place, gate: Gate) -> None:
    ended = str(place.work / f"{gate.folder.name}-ended")
    kernel.run(f"import asyncio, os\nended = {ended!r}").ok()
    background(kernel, f"{gate.closed()}made = 1\nopen({ended!r}, 'w').close()")
    wait = "while not os.path.exists(ended): await asyncio.sleep(0.01)\nfor _ in range(30): await asyncio.sleep(0.01)"
    cell = kernel.begin(f"print('begun')\n{wait}\njob.status")
    cell.wait_for_text("begun")
    gate.open()
    assert cell.finish().ok().value == "'running'"
    kernel.run("job.result()").ok()
    assert kernel.evaluate("made") == 1


def test_a_subshell_waits_for_all_background_cells(kernel: Kernel, gate: Gate) -> None:
    kernel.run("values = []").ok()
    subshell = kernel.ask_control("create_subshell_request")["subshell_id"]
    background(kernel, f"{gate.closed()}values.append(1)")
    refused = kernel.on_subshell(subshell, "%%gpu --background other\n1").finish()
    assert "hint: run it in the notebook itself" in refused.stderr
    waits = [kernel.on_subshell(subshell, code) for code in ("values.append(2)", "%%gpu\nvalues.append(3)")]
    assert kernel.run("5").ok().value == "5"
    assert not any(cell.done for cell in waits)
    gate.open()
    for cell in waits:
        cell.finish().ok()
    assert kernel.evaluate("values") == [1, 2, 3]
    kernel.ask_control("delete_subshell_request", {"subshell_id": subshell})


def test_its_worker_is_killed(kernel: Kernel, gate: Gate) -> None:
    kernel.run("values = []").ok()
    session = kernel.session_pid
    cell = background(kernel, f"values.append(1)\nprint('begun')\n{gate.closed()}")
    cell.wait_for_text("begun")
    os.kill(session, signal.SIGKILL)
    error = cell.wait_for(lambda result: result.error, "the error").error
    assert error is not None
    assert "Your variables are as they were before the cell" in str(error)
    assert kernel.evaluate("values, job.status") == ([], "failed")
    assert kernel.gpu("values.append(5); values").ok().value == "[5]"


def test_it_waits_for_a_notebook_that_runs_another_cell(
    service: Service, new_kernel: Callable[..., Kernel], gate: Gate
) -> None:
    """Its session is lost, so it needs all variables again, and the notebook can send them only between two cells."""
    service.start_broker()
    worker = service.start_worker()
    kernel = service.kernel(new_kernel)
    kernel.gpu("values = [1]").ok()
    service.process(worker).send_signal(signal.SIGSTOP)
    cell = background(kernel, "values.append(2)\nvalues")
    wait_until(lambda: len(service.jobs()) == 2, "the broker has the cell")
    other = kernel.begin(f"print('begun')\n{gate.closed()}")
    other.wait_for_text("begun")
    service.kill(worker)
    service.start_worker()
    status = "Waiting until the notebook runs no other cell"
    cell.wait_for(lambda result: status in str(result.outputs), "its worker does not wait for ever", seconds=300)
    gate.open()
    other.finish().ok()
    assert kernel.run("job.result()").ok().value == "[1, 2]"
    assert kernel.evaluate("values") == [1, 2]


def test_it_lands_after_expressions_of_a_front_end(kernel: Kernel, gate: Gate) -> None:
    cell = background(kernel, f"{gate.closed()}[7]")
    assert kernel.evaluate("job.status") == "running"
    gate.open()
    cell.wait_for(lambda result: "[7]" in str(result.outputs), "it lands while the kernel is idle")


def test_an_undo_takes_it_back(kernel: Kernel) -> None:
    kernel.run("values = [1]").ok()
    background(kernel, "values.append(2)")
    kernel.run("job.result()").ok()
    assert "Undone" in kernel.run("%gpu_undo").ok().stdout
    assert kernel.evaluate("values") == [1]


def test_its_output_is_shown_again(kernel: Kernel, gate: Gate) -> None:
    background(kernel, f"print('first words')\n{gate.closed()}'value'")
    gate.open()
    kernel.run("job.result()").ok()
    shown = kernel.run("%gpu_output").ok()
    assert "first words" in shown.stdout
    assert "'value'" in str(shown.outputs)


def test_earlier_output_is_shown_while_a_result_waits_for_the_end_of_a_cell(kernel: Kernel, gate: Gate) -> None:
    number = kernel.gpu("print('earlier')").ok().reply["execution_count"]
    kernel.run(
        "import gc, select\nfrom baton_shim.base.link import Link\n"
        "proxy = next(found for found in gc.get_objects() if type(found) is Link).fileno()"
    ).ok()
    background(kernel, f"{gate.closed()}made = 1")
    # The result arrives while this cell runs, so it cannot be applied yet.
    cell = kernel.begin(f"print('begun')\nselect.select([proxy], [], [])\n%gpu_output {number}")
    cell.wait_for_text("begun")
    gate.open()
    assert "earlier" in cell.finish().ok().stdout
    assert kernel.evaluate("made") == 1


def test_what_is_wrong_is_said_at_once(kernel: Kernel) -> None:
    assert "SyntaxError" in kernel.run("%%gpu --background job\nwrong = = 1").plain_traceback
    assert "not the name of a variable" in kernel.run("%%gpu --background 5\n1").stderr
    assert "choose another name" in kernel.run("%%gpu --background x\nx = 1").stderr
    assert "hint: write %gpu_jobs" in kernel.run("%gpu_jobs --cancel x").stderr


DECORATED = """
from baton import gpu
values, other = [], []
@gpu
def fit(n, into):
    into.append(n)
    return n * 2
@gpu(timeout="1m")
def fails(): raise ValueError("no")
"""


def test_calls_run_when_their_cell_has_ended_and_in_their_order(kernel: Kernel) -> None:
    kernel.run(DECORATED).ok()
    speaking(kernel, "one, two = fit.background(1, values), fit.background(2, into=values)\nvalues.append('first')")
    assert kernel.run("other.append(1); other").ok().value == "[1]"
    assert kernel.evaluate("(one.result(), two.result(), values)") == (2, 4, ["first", 1, 2])
    assert kernel.run("fit.background(3, values).result(), values").ok().value == "(6, ['first', 1, 2, 3])"
    assert "ValueError: no" in kernel.run("job = fails.background()\njob.result()").plain_traceback
    assert kernel.gpu("fit.background(4, values).result()").ok().value == "8"
    refused = kernel.run("with gpu(background='job'): pass")
    assert "hint: call an @gpu function with f.background(...)" in refused.plain_traceback
    assert "a call of In" in kernel.run("%gpu_jobs").ok().stdout


SLOW = """
@gpu
def slow(into):
    import os, time
    while not os.path.exists(path): time.sleep(0.01)
    into.append(1)
"""


def test_what_a_call_was_given_is_lent(kernel: Kernel, gate: Gate) -> None:
    kernel.run(f"{DECORATED}{SLOW}").ok()
    gate.closed()
    speaking(kernel, f"path = {str(gate.path)!r}; hidden = [values]\njob = slow.background(hidden[0])")
    assert kernel.run("other.append(1); other").ok().value == "[1]"
    waits = kernel.begin("values")
    waits.wait_for(lambda result: "Waiting for a call of In" in result.stderr, "it waits")
    gate.open()
    assert waits.finish().ok().value == "[1]"


def test_any_order_of_cells_is_as_if_they_ran_one_after_another(kernel: Kernel) -> None:
    """Notebooks of random cells, some of which run in the background, compared with the same cells in plain Python."""
    for seed in range(12):
        dice = random.Random(seed)
        cells = [code(dice) for _ in range(14)]
        kernel.empty()
        kernel.run(SHARED).ok()
        expected: dict[str, Any] = {}
        exec(SHARED, expected)
        for number, one in enumerate(cells):
            exec(one, expected)
            if dice.random() < 0.4:
                wait = f"import time\ntime.sleep({dice.choice([0, 0.02, 0.2])})\n"
                background(kernel, wait + one, f"job_{number}")
            else:
                kernel.run(one).ok()
        assert kernel.evaluate(SEEN) == eval(SEEN, expected), (seed, cells)


SHARED = """
import numpy as np
array = np.arange(6.0); view = array[2:]; other = np.ones(3)
rows = [1, 2]; same = rows; nested = {'rows': rows, 'n': 0}; alone = [5]
number = 1; text = 'a'; pair = (rows, 2)
def add(n):
    global total
    total = total + n
    return rows
def counting():
    count = 0
    def step():
        nonlocal count
        count += 1
        return count
    return step
total = 0; step = counting()
class Box:
    made = []
    def __init__(self, value): self.value = value; Box.made.append(value)
box = Box(rows)
"""
SEEN = """(
    array.tolist(), view.tolist(), other.tolist(), np.shares_memory(array, view), rows, same is rows,
    nested['rows'] is rows, nested['n'], alone, number, text, pair[0] is rows, total, step(), len(Box.made),
    box.value is rows)"""


def code(dice: random.Random) -> str:
    """A cell: some statements that read, change, bind or alias objects of other cells."""
    n = dice.randrange(10)
    statements = [
        f"array[{n % 6}] += {n}",
        f"view[{n % 4}] *= 2",
        "other = other + view[:3]",
        f"other[0] = {n}",
        f"rows.append({n})",
        "same.append(len(rows))",
        f"nested['n'] += number + {n}",
        "nested['rows'].reverse()",
        f"alone.append({n})",
        "alone = list(rows)",
        f"number = number * 3 % 101 + {n}",
        "text = (text + str(number))[-20:]",
        f"add({n}).append(total)",
        "number += step()",
        "box = Box(rows)",
        "rows = list(rows); same = rows; nested = {'rows': rows, 'n': nested['n']}; pair = (rows, 2); box = Box(rows)",
    ]
    return "; ".join(dice.sample(statements, dice.randrange(1, 4)))


def test_the_broker_is_killed_again_and_again(
    service: Service, place: Place, new_kernel: Callable[..., Kernel], gate: Gate
) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_READABLE=str(place.signs))
    kernel = service.kernel(new_kernel)
    kernel.run("values, other = [], []").ok()
    body = f"values.append(1)\nprint('begun')\n{gate.closed()}values.append(2)\nprint('end')"
    cell = background(kernel, body)
    background(kernel, "values.append(3)", "second")
    cell.wait_for_text("begun")
    for number in range(3):
        service.kill("broker")
        kernel.run(f"other.append({number})").ok()
        service.start_broker()
    gate.open()
    kernel.run("second.result()").ok()
    assert kernel.evaluate("(values, other)") == ([1, 2, 3], [0, 1, 2])
    cell.wait_for_text("end")


def test_a_new_kernel_does_not_wait_for_the_cells_of_the_last_one(
    new_kernel: Callable[..., Kernel], gate: Gate
) -> None:
    kernel = new_kernel()
    cell = background(kernel, f"print('begun')\n{gate.closed()}")
    cell.wait_for_text("begun")
    kernel.restart()
    assert kernel.run("5").ok().value == "5"
    gate.open()
    wait_until(
        lambda: "%gpu_attach" in kernel.run("%gpu_jobs").ok().stdout, "the broker knows that the kernel has ended"
    )
    kernel.run("%gpu_attach").ok()
