"""IPython's magics around, in and under `%%gpu`: they behave as in an ordinary cell."""

from __future__ import annotations

import re
from collections.abc import Callable

from end_to_end import Kernel
from end_to_end.results import Result

ZERO = "def divide(number):\n    kept = [number]\n    return 1 / number\ndivide(0)"


def pages(result: Result) -> list[str]:
    """What `?` or a profile shows in the pager."""
    return [payload["data"]["text/plain"] for payload in result.reply["payload"] if payload["source"] == "page"]


def typed(result: Result, pattern: str) -> None:
    assert re.search(pattern, result.stdout), result.stdout


# ---- cell magics


def test_time(kernel: Kernel) -> None:
    typed(kernel.run("%%time\n%%gpu\nprint('x')").ok(), r"^x\nCPU times: (?s:.*)Wall time: ")
    typed(kernel.gpu("%%time\nprint('x')").ok(), r"^x\nCPU times: (?s:.*)Wall time: ")


def test_timeit(kernel: Kernel) -> None:
    """Around the magic, every run is a run of the cell in the session."""
    kernel.run("runs = []").ok()
    typed(kernel.run("%%timeit -n 1 -r 2\n%%gpu --quiet\nruns.append(1)").ok(), r"per loop .*of 2 runs, 1 loop each")
    assert kernel.evaluate("len(runs)") == 2
    typed(kernel.gpu("%timeit -n 1 -r 2 runs.append(1)").ok(), r"of 2 runs, 1 loop each")
    assert kernel.evaluate("len(runs)") == 4


def test_capture(kernel: Kernel) -> None:
    """`test_gpu_output` tests it around the cell."""
    assert kernel.gpu("%%capture got\nprint('inside')").ok().outputs == []
    assert kernel.evaluate("got.stdout") == "inside\n"


def test_prun(kernel: Kernel) -> None:
    for result in (kernel.run("%%prun\n%%gpu --quiet\nsum([1])"), kernel.gpu("%%prun\nsum([1])")):
        (page,) = pages(result.ok())
        assert "function calls" in page


def test_writefile(kernel: Kernel) -> None:
    """Above `%%gpu`, it writes that line like any other; below, the cell's machine writes what follows."""
    kernel.run("%%writefile above.txt\n%%gpu\n1").ok()
    kernel.gpu("%%writefile below.txt\nhello").ok()
    assert kernel.evaluate("(open('above.txt').read(), open('below.txt').read())") == ("%%gpu\n1\n", "hello\n")


def test_bash(kernel: Kernel) -> None:
    assert kernel.gpu("%%bash\necho $((1 + 1))").ok().stdout == "2\n"


# ---- line magics


def test_load_replaces_the_cell(kernel: Kernel) -> None:
    (kernel.place.work / "part.py").write_text("print('loaded')\n")
    here = kernel.run("%load part.py").ok().reply["payload"]
    assert here == [{"source": "set_next_input", "text": "# %load part.py\nprint('loaded')\n", "replace": True}]
    assert kernel.gpu("%load part.py").ok().reply["payload"] == here


def test_help_opens_the_pager(kernel: Kernel) -> None:
    assert pages(kernel.gpu("zip?").ok()) == pages(kernel.run("zip?").ok()) != []


def test_short_forms_in_a_cell_of_one_line(kernel: Kernel) -> None:
    kernel.run("%alias hello echo hello").ok()
    for code in ("pwd", "hello you", "x = 5;", "# nothing"):
        here = kernel.run(code).ok().outputs
        assert kernel.gpu(code).ok().outputs == here
    kernel.run("%unalias hello").ok()


def test_a_variable_hides_a_short_form(kernel: Kernel) -> None:
    kernel.run("pwd = 3").ok()
    assert kernel.gpu("pwd").ok().value == "3"


def test_aliases_go_there_and_back(kernel: Kernel) -> None:
    kernel.run("%alias here echo here").ok()
    assert kernel.gpu("x = 1\n%here you").ok().stdout == "here you\r\n"
    kernel.gpu("%unalias here\n%alias there echo there").ok()
    assert kernel.run("%there you").ok().stdout == "there you\r\n"
    assert "not found" in kernel.run("%here you").stderr
    kernel.run("%unalias there").ok()


def test_aliases_of_magics_go_there_and_back(kernel: Kernel) -> None:
    kernel.run("%alias_magic run_it time\n%alias_magic --cell said capture -p got").ok()
    assert "Wall time" in kernel.gpu("%run_it x = 1").ok().stdout
    assert kernel.gpu("%%said\nprint('caught')").ok().stdout == ""
    assert kernel.run("got.stdout").ok().value == "'caught\\n'"
    kernel.gpu("%alias_magic again run_it").ok()
    assert "Wall time" in kernel.run("%again x = 2").ok().stdout


def test_the_directory_history_goes_there_and_back(kernel: Kernel) -> None:
    where = "\nos.path.relpath(os.getcwd(), start)"
    kernel.run("import os\nstart = os.getcwd()\nos.makedirs('one/two', exist_ok=True)\n%cd -q one").ok()
    assert kernel.gpu("%cd -q two" + where).ok().value == "'one/two'"
    assert kernel.run("%cd -" + where).ok().value == "'one'"
    assert kernel.gpu("%cd -" + where).ok().value == "'one/two'"
    kernel.run("%pushd ..").ok()
    assert kernel.gpu("%popd" + where).ok().value == "'one/two'"
    assert kernel.run("[os.path.relpath(one, start) for one in _dh][:3]").ok().value == "['.', 'one', 'one/two']"
    kernel.run("%cd -q {start}\ndel start, os").ok()


def test_extensions_go_there_and_back(kernel: Kernel) -> None:
    for name in ("here", "there"):
        (kernel.place.work / f"extension_{name}.py").write_text(
            "def load_ipython_extension(shell):\n"
            f"    shell.register_magic_function(lambda line: print('{name}', line), 'line', 'say_{name}')\n"
            "def unload_ipython_extension(shell):\n"
            f"    del shell.magics_manager.magics['line']['say_{name}']\n"
        )
    kernel.run("%load_ext extension_here").ok()
    assert kernel.gpu("%say_here 1").ok().stdout == "here 1\n"
    kernel.gpu("%unload_ext extension_here\n%load_ext extension_there").ok()
    assert kernel.run("%say_there 2").ok().stdout == "there 2\n"
    assert "not found" in kernel.run("%say_here 1").stderr
    kernel.run("%unload_ext extension_there").ok()


def test_an_extension_that_the_worker_does_not_have(kernel: Kernel) -> None:
    """Only code that needs it fails."""
    kernel.run(
        "import sys, types\nmodule = types.ModuleType('only_here')\n"
        "module.load_ipython_extension = lambda shell: None\nmodule.unload_ipython_extension = lambda shell: None\n"
        "sys.modules['only_here'] = module\ndel module\n%load_ext only_here"
    ).ok()
    result = kernel.gpu("1 + 1").ok()
    assert (result.value, result.stderr) == ("2", "")
    kernel.run("%unload_ext only_here").ok()


def test_matplotlib(kernel: Kernel) -> None:
    kernel.run("%matplotlib inline").ok()
    assert "inline" in str(kernel.gpu("import matplotlib\nmatplotlib.get_backend()").ok().value)
    here, there = kernel.run("%matplotlib no-such-backend"), kernel.gpu("%matplotlib no-such-backend")
    assert here.error == there.error is not None


def test_matplotlib_widget(new_kernel: Callable[..., Kernel]) -> None:
    """A canvas of ipympl stays alive when a `%%gpu` cell changes its figure; a new figure of such a cell gets one."""
    kernel = new_kernel()
    kernel.run("%matplotlib widget").ok()
    plot = "import matplotlib.pyplot as plt\nfigure, axes = plt.subplots()\nline, = axes.plot([1, 2, 3])"
    opened = kernel.run(plot).ok().of("comm_open")
    assert "MPLCanvasModel" in [each["data"]["state"]["_model_name"] for each in opened]
    listening = "{signal: len(functions) for signal, functions in figure._canvas_callbacks.callbacks.items()}"
    kernel.run(f"canvas, listening = figure.canvas, {listening}").ok()
    changed = kernel.gpu("line.set_ydata([3, 2, 1])").ok()
    assert (changed.of("comm_open"), changed.of("comm_close")) == ([], [])
    assert any('"draw"' in content["data"]["content"]["data"] for content in changed.of("comm_msg"))
    assert kernel.evaluate("line.get_ydata()") == [3, 2, 1]
    assert kernel.evaluate(f"figure.canvas is canvas and plt.gcf() is figure and {listening} == listening")
    made = kernel.gpu("other = plt.figure()\n_ = plt.plot([2, 1])").ok()
    assert "MPLCanvasModel" in [each["data"]["state"]["_model_name"] for each in made.of("comm_open")]
    assert views(made) == 1


def test_matplotlib_widget_shows_no_figure_after_ioff(new_kernel: Callable[..., Kernel]) -> None:
    """Such a figure is a part of a layout of widgets, or is shown by `plt.show()`."""
    kernel = new_kernel()
    kernel.run("%matplotlib widget\nimport matplotlib.pyplot as plt").ok()
    for run in (kernel.run, kernel.gpu):
        assert views(run("with plt.ioff():\n    hidden = plt.figure()").ok()) == 0
        assert views(kernel.run("from IPython.display import display\ndisplay(hidden.canvas)").ok()) == 1
        assert views(run("with plt.ioff():\n    asked = plt.figure()\nplt.show()").ok()) == 1
        assert views(run("with plt.ioff():\n    hidden = plt.figure()\nshown = plt.figure()").ok()) == 1
    assert kernel.evaluate("plt.isinteractive()")


def views(result: Result) -> int:
    """The number of widgets that a cell shows."""
    return sum("application/vnd.jupyter.widget-view+json" in display["data"] for display in result.displays)


# ---- debuggers


def test_debug_says_where_it_works(kernel: Kernel) -> None:
    assert kernel.gpu(ZERO).error == ("ZeroDivisionError", "division by zero")
    here = kernel.run("%debug", answers=["q"]).ok()
    assert "%debug in a %%gpu cell" in here.stderr
    typed(kernel.gpu("%debug", answers=["p kept", "q"]).ok(), r"(?m)^\[0\]$")


def test_debug_after_an_error_of_an_ordinary_cell(kernel: Kernel) -> None:
    kernel.gpu(ZERO)
    kernel.run("text = 'here'\nint(text)")
    typed(kernel.run("%debug", answers=["p text", "q"]).ok(), r"'here'")


def test_pdb_opens_the_debugger_where_the_error_is(kernel: Kernel) -> None:
    kernel.run("%pdb on").ok()
    result = kernel.gpu(ZERO, answers=["p kept", "q"])
    typed(result, r"(?m)^\[0\]$")
    assert result.error == ("ZeroDivisionError", "division by zero")
    kernel.run("%pdb off").ok()
    assert kernel.gpu(ZERO).stdout == ""


def test_set_trace(kernel: Kernel) -> None:
    body = "number = 3\nimport pdb; pdb.set_trace()\nprint('went on')"
    typed(kernel.gpu(body, answers=["p number + 1", "c"]).ok(), r"(?m)^4\nwent on$")


def test_a_session_loads_no_debugger_unless_a_cell_does(new_kernel: Callable[..., Kernel]) -> None:
    kernel = new_kernel()
    look = "import sys\nprint([name for name in ('debugpy', 'pydevd') if name in sys.modules])"
    assert kernel.gpu(look).ok().stdout == "[]\n"
    assert kernel.gpu("import debugpy\nprint(debugpy.__name__)").ok().stdout == "debugpy\n"


def test_a_gpu_cell_loads_no_magics_of_ipython_that_nothing_uses(new_kernel: Callable[..., Kernel]) -> None:
    """If stop is pressed while IPython loads them, its magics never work again."""
    kernel = new_kernel()
    waiting = "sum(type(one).__name__ == 'LazyMagic' for one in get_ipython().magics_manager.magics['line'].values())"
    before = kernel.evaluate(waiting)
    kernel.gpu("pass").ok()
    assert kernel.evaluate(waiting) == before > 0
