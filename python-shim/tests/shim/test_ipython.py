"""IPython itself around a cell: errors that it shows, and what the notebook attached to it or set in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Baton

HERE_AND_THERE = pytest.mark.parametrize("magic", ["", "%%gpu\n"], ids=["here", "there"])


def test_errors_that_do_not_end_the_cell_are_shown(baton: Baton) -> None:
    baton.run("class Bad:\n    def _repr_html_(self): raise ValueError('no html')")
    cell = baton.run("%%gpu\nBad()")
    assert cell.reply["status"] == "ok"
    assert "ValueError" in cell.traceback and "no html" in cell.traceback
    shown = baton.run(
        "%%gpu\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    get_ipython().showtraceback()\nprint('on')"
    )
    assert "division by zero" in shown.traceback
    assert shown.text() == "on\n"


def test_the_last_error(baton: Baton) -> None:
    failing = "%%gpu\nimport json\njson.loads('{')"
    assert baton.run(failing).error.startswith("JSONDecodeError")
    look = "import sys, traceback\ntype(sys.last_value), sys.last_value.pos, traceback.extract_tb(sys.last_traceback)[-1].name"
    expected = "(json.decoder.JSONDecodeError, 1, 'raw_decode')"
    assert baton.run(look).result == expected
    assert baton.run(f"%%gpu\n{look}").result == expected
    assert "Expecting property name" in baton.run("%%gpu\n%tb").traceback


@HERE_AND_THERE
def test_the_last_error_of_a_magic(baton: Baton, magic: str) -> None:
    baton.run("%%unknown\n1")
    cell = baton.run(f"{magic}%tb")
    assert cell.all("error") == []
    assert "UsageError: Cell magic `%%unknown` not found" in cell.text("stderr")


@HERE_AND_THERE
def test_future_statements_hold_for_all_later_cells(baton: Baton, magic: str) -> None:
    baton.run(f"{magic}from __future__ import annotations")
    for there in ("", "%%gpu\n"):
        cell = baton.run(f"{there}def f(x: Unknown) -> None: ...\nf.__annotations__")
        assert cell.result == "{'x': 'Unknown', 'return': 'None'}", cell.traceback


@HERE_AND_THERE
def test_a_formatter_of_a_library_without_ipythons_settings(baton: Baton, magic: str) -> None:
    install = (
        "from IPython.core.formatters import BaseFormatter\n"
        "class Plain(BaseFormatter):\n"
        "    def __call__(self, value): return f'<{value}>'\n"
        "get_ipython().display_formatter.formatters['text/plain'] = Plain()"
    )
    baton.run(magic + install)
    for there in ("", "%%gpu\n"):
        assert baton.run(f"{there}None").text("stderr") == ""


@HERE_AND_THERE
def test_an_error_that_a_variable_has_is_the_last_error(baton: Baton, magic: str) -> None:
    keep = "class E(Exception): pass\nkept = []\ntry:\n    1 / 0\nexcept ZeroDivisionError as error:\n    kept.append(error)"
    baton.run(magic + keep)
    baton.run("%%gpu\nraise kept[0] from KeyError('k')")
    assert baton.value("__import__('sys').last_value is kept[0]") == "True"
    assert baton.value("vars(kept[0]), repr(kept[0].__cause__)") == "({}, \"KeyError('k')\")"
    baton.run("%%gpu\nkept.append(E([3])); raise kept[1]")
    assert baton.value("__import__('sys').last_value is kept[1]") == "True"
    assert "line 5" not in baton.run("5\nraise kept[1]").traceback
    assert "raise kept[1]" in baton.run("%tb").traceback


@HERE_AND_THERE
def test_a_handler_of_ones_own_for_errors(baton: Baton, magic: str) -> None:
    baton.run(
        f"{magic}def handle(shell, kind, error, trace, tb_offset=None):\n"
        "    seen.append((kind.__name__, str(error), trace.tb_next.tb_lineno))\n"
        "seen = []; get_ipython().set_custom_exc((KeyError,), handle)"
    )
    for there in ("", "%%gpu\n"):
        assert baton.run(f"{there}0\nraise KeyError('k')").all("error") == []
        assert baton.run(f"{there}1 / 0").error.startswith("ZeroDivisionError")
    assert baton.value("seen") == "[('KeyError', \"'k'\", 2), ('KeyError', \"'k'\", 3)]"
    baton.run(f"{magic}get_ipython().set_custom_exc((), None)")
    for there in ("", "%%gpu\n"):
        assert baton.run(f"{there}raise KeyError('k')").error.startswith("KeyError")


@HERE_AND_THERE
def test_a_handler_of_ones_own_for_a_signal(baton: Baton, magic: str) -> None:
    baton.run(
        "import os, signal\nseen = []\ndef handle(number, frame): seen.append(number == signal.SIGUSR1)\n"
        "def send():\n    os.kill(os.getpid(), signal.SIGUSR1)\n    return len(seen)"
    )
    baton.run(f"{magic}usual = signal.signal(signal.SIGUSR1, handle)")
    for there in ("", "%%gpu\n"):
        baton.run(f"{there}send()")
    assert baton.value("seen, signal.getsignal(signal.SIGUSR1) is handle") == "([True, True], True)"
    baton.run(f"{magic}signal.signal(signal.SIGUSR1, usual)")
    for there in ("", "%%gpu\n"):
        assert baton.run(f"{there}signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL").result == "True"


@HERE_AND_THERE
def test_how_sympy_prints(baton: Baton, magic: str) -> None:
    baton.run("import sympy\nx = sympy.Symbol('x')")
    for change, kinds in (("use_latex=False", ["text/plain"]), ("use_latex='mathjax'", ["text/latex", "text/plain"])):
        baton.run(f"{magic}sympy.init_printing({change}, order='rev-lex')")
        for there in ("", "%%gpu\n"):
            (shown,) = baton.run(f"{there}x**2 + x").all("execute_result")
            assert sorted(shown["data"]) == kinds
            assert baton.run(f"{there}sympy.sstr(x**2 + x)").result == "'x + x**2'"


@HERE_AND_THERE
def test_magics_and_formatters_of_the_notebook(baton: Baton, magic: str) -> None:
    baton.run(
        f"{magic}from IPython.core.magic import register_line_magic\nrate = 2\n"
        "@register_line_magic\ndef times(line): return int(line) * rate\n"
        "class A: pass\ndef as_text(a, printer, cycle): printer.text(f'<A {rate}>')\n"
        "get_ipython().display_formatter.formatters['text/plain'].for_type(A, as_text)"
    )
    for rate in (2, 5):
        baton.run(f"rate = {rate}")
        for there in ("", "%%gpu\n"):
            assert baton.run(f"{there}%times 3").result == str(3 * rate)
            assert baton.run(f"{there}A()").result == f"<A {rate}>"
    baton.run(f"{magic}get_ipython().display_formatter.formatters['text/plain'].pop(A)")
    for there in ("", "%%gpu\n"):
        assert "A at 0x" in str(baton.run(f"{there}A()").result)


@HERE_AND_THERE
def test_parts_of_the_shell_are_each_kernels_own(baton: Baton, magic: str) -> None:
    baton.run(
        f"{magic}ip = get_ipython(); shown = ip.display_formatter.formatters['text/plain']; hook = ip.displayhook\n"
        "class A: pass\nshown.for_type(A, lambda a, printer, cycle: printer.text('<A>'))"
    )
    look = "shown is get_ipython().display_formatter.formatters['text/plain'], hook is get_ipython().displayhook, A()"
    for there in ("", "%%gpu\n"):
        assert baton.run(f"{there}{look}").result == "(True, True, <A>)"


@HERE_AND_THERE
def test_which_values_are_shown_by_the_class_of_the_shell(baton: Baton, magic: str) -> None:
    baton.run(f"{magic}from IPython.core.interactiveshell import InteractiveShell")
    for chosen, shown in (("all", ["1", "2"]), ("last", ["2"]), ("all", ["1", "2"])):
        baton.run(f"{magic}InteractiveShell.ast_node_interactivity = {chosen!r}")
        for there in ("", "%%gpu\n"):
            cell = baton.run(f"{there}1\n2")
            found = cell.all("display_data") + cell.all("execute_result")
            assert sorted(one["data"]["text/plain"] for one in found) == shown


@HERE_AND_THERE
def test_callbacks_of_events_run_once_for_each_cell(baton: Baton, magic: str) -> None:
    baton.run(f"{magic}seen = []\ndef note(*_): seen.append(1)\nget_ipython().events.register('post_run_cell', note)")
    baton.run("%%gpu\nx = 1")
    baton.run("x = 2")
    assert baton.run("%%gpu\nget_ipython().events.unregister('post_run_cell', note); len(seen)").result == "3"
    assert baton.run("len(seen)").result == "3"


def test_a_callback_of_a_library_that_unregisters_itself(baton: Baton) -> None:
    with open(baton.folder / "once.py", "w") as module:
        module.write("seen = []\ndef end(*_):\n    seen.append(1)\n    events.unregister('post_run_cell', end)\n")
    baton.run("%%gpu\nimport once\nonce.events = get_ipython().events; once.events.register('post_run_cell', once.end)")
    baton.run("%%gpu\n1")
    look = "%%gpu\nimport once\nlen(once.seen), once.end in once.events.callbacks['post_run_cell']"
    assert baton.run(look).result == "(1, False)"


@pytest.mark.parametrize("first", ["", "%%gpu\n"])
def test_magics_that_a_module_registers(baton: Baton, first: str) -> None:
    (baton.folder / "mine.py").write_text(
        "from IPython.core.magic import Magics, cell_magic, magics_class, register_line_magic\n"
        "get_ipython().run_cell('%xmode Minimal')\n"
        "@register_line_magic\ndef twice(line): return int(line) * 2\n"
        "@magics_class\nclass Mine(Magics):\n"
        "    @cell_magic\n    def counted(self, line, cell): return len(cell)\n"
        "get_ipython().register_magics(Mine)\n"
    )
    baton.run(f"{first}import mine")
    for magic in ("%%gpu\n", ""):
        assert baton.run(f"{magic}%twice 4").result == "8"
        assert baton.run(f"{magic}%%counted\nabc").result == "4"


def test_xdel(baton: Baton) -> None:
    baton.run("x = [1]; y = [1]")
    assert baton.run("%%gpu\n%xdel x\ny").result == "[1]"
    assert baton.value("'x' in globals(), y") == "(False, [1])"


def test_the_source_of_earlier_cells(baton: Baton) -> None:
    baton.run("1 + 1")
    baton.run("2 + 2")
    assert baton.run("%%gpu\n_i, _ii, _i1").result == "('2 + 2', '1 + 1', '1 + 1')"


@HERE_AND_THERE
def test_values_that_are_set_on_modules_and_classes_of_libraries(baton: Baton, magic: str) -> None:
    baton.run("import builtins, ssl, sys, tarfile, threading\nheld = [threading.local()]")
    baton.run(
        f"{magic}tarfile.ENCODING = 'latin1'; tarfile.TarFile.dereference = True; tarfile.shown = shown = [1]\n"
        "ssl._create_default_https_context = ssl._create_unverified_context; sys.tracebacklimit = 7; builtins.often = 2"
    )
    look = (
        "tarfile.ENCODING, tarfile.TarFile.dereference, tarfile.shown is shown, sys.tracebacklimit, often,"
        " ssl._create_default_https_context.__name__"
    )
    expected = "('latin1', True, True, 7, 2, '_create_unverified_context')"
    for there in ("", "%%gpu\n"):
        assert baton.run(f"{there}shown.append(1)\n{look}").result == expected
    baton.lose_session()
    assert baton.run("%%gpu\ndef f():\n    import tarfile\n    return tarfile.ENCODING\nf()").result == "'latin1'"
    baton.run("tarfile.shown = held[0]")
    assert "is data of this kernel's threads" in baton.run("%%gpu\ntarfile.shown.x").error
    baton.run("held[0].x = 3")
    assert baton.run("tarfile.shown is held[0], tarfile.shown.x").result == "(True, 3)"
    baton.run(f"{magic}tarfile.DEFAULT_FORMAT = tarfile.DEFAULT_FORMAT")  # restores it
    for there in ("", "%%gpu\n"):
        assert baton.run(f"{there}tarfile.DEFAULT_FORMAT == tarfile.PAX_FORMAT").result == "True"
    baton.run(f"{magic}tarfile.ENCODING += 'x'; del builtins.often, tarfile.shown")
    for there in ("", "%%gpu\n"):
        assert baton.run(f"{there}tarfile.ENCODING, hasattr(tarfile, 'shown')").result == "('latin1x', False)"
        assert baton.run(f"{there}often").error.startswith("NameError")


@HERE_AND_THERE
def test_what_is_set_on_classes_and_modules_of_libraries(baton: Baton, magic: str) -> None:
    baton.run(
        f"{magic}import fractions, statistics\nfrom collections import Counter\nunit = 'x'\n"
        "def most(self): return unit * max(self.values())\nCounter.most = most\n"
        "usual = statistics.mean\nstatistics.mean = lambda values: 'mine'\n"
        "import collections.abc, gc\nclass Own: pass\ncollections.abc.Sized.register(Own); own = Own()\n"
        "seen = []\ndef collected(phase, info): seen.append(phase)\ngc.callbacks.append(collected)"
    )
    for there in ("", "%%gpu\n"):
        assert baton.run(f"{there}isinstance(own, collections.abc.Sized)").result == "True"
        assert baton.run(f"{there}del seen[:]; _ = gc.collect(); seen[:2]").result == "['start', 'stop']"
    baton.run(f"{magic}gc.callbacks.remove(collected)")
    for there in ("", "%%gpu\n"):
        assert baton.run(f"{there}collected in gc.callbacks").result == "False"
    for there in ("", "%%gpu\n"):
        assert baton.run(f"{there}Counter('aab').most(), statistics.mean([1])").result == "('xx', 'mine')"
    baton.run("%%gpu\nx = 1")
    assert baton.run("Counter('aab').most(), statistics.mean([1])").result == "('xx', 'mine')"
    baton.lose_session()
    baton.run("%%gpu\nx = 1")
    assert baton.run("Counter('aab').most(), statistics.mean([1])").result == "('xx', 'mine')"
    baton.run(f"{magic}del Counter.most; statistics.mean = usual")
    for there in ("", "%%gpu\n"):
        assert baton.run(f"{there}hasattr(Counter, 'most'), statistics.mean([1])").result == "(False, 1)"


def test_the_history_is_in_the_notebook(baton: Baton) -> None:
    baton.run("1 + 1")
    cell = baton.run("%%gpu\nx = 1\n%history -l 1\nx = 2")
    assert "hint: write it in a cell without %%gpu" in cell.text("stderr")
    assert "1 + 1" in baton.run("%history -l 2").text()


@pytest.mark.parametrize("line", ["%gpu_status", "%gpu_undo", "%%gpu"])
def test_commands_for_the_notebook(baton: Baton, line: str) -> None:
    cell = baton.run(f"%%gpu\n{line}\n1")
    assert "\nhint: " in cell.text("stderr"), cell.messages


BY_NAME = (
    "plain = get_ipython().display_formatter.formatters['text/plain']\n"
    "def show(value, p, cycle): p.text(f'shown {value.numerator}')\n"
    "plain.for_type_by_name('fractions', 'Fraction', show)"
)


@pytest.mark.parametrize("magic", ["%store a", "%bookmark here"])
def test_the_profile_is_in_the_notebook(baton: Baton, magic: str) -> None:
    cell = baton.run(f"%%gpu\na = 1\n{magic}")
    assert f"UsageError: {magic.split()[0]} uses the notebook's IPython profile" in cell.text("stderr")


@HERE_AND_THERE
def test_a_formatter_for_a_class_that_is_not_loaded_yet(baton: Baton, magic: str) -> None:
    look = "import fractions\nfractions.Fraction(3, 4)"
    other = "" if magic else "%%gpu\n"
    baton.run(magic + BY_NAME)
    assert baton.run(other + look).result == "shown 3"
    assert baton.run(magic + look).result == "shown 3"
    assert baton.run(other + look).result == "shown 3"
    baton.run(f"{magic}import fractions\ndel plain.type_printers[fractions.Fraction]")
    assert baton.run(other + look).result == "Fraction(3, 4)"


CHANGES_OF_PRINTERS = {
    "old = html.for_type_by_name('fractions', 'Fraction', Fraction.__str__)": ["text/html", "text/plain"],
    "html.pop(Fraction)": ["text/plain"],
    "html.for_type(Fraction, '<i>{}</i>'.format)": ["text/html", "text/plain"],
    "del html.type_printers[Fraction]": ["text/plain"],
}


@HERE_AND_THERE
def test_a_function_of_a_library_as_formatter(baton: Baton, magic: str) -> None:
    baton.run("from fractions import Fraction\nhtml = get_ipython().display_formatter.formatters['text/html']")
    for change, kinds in CHANGES_OF_PRINTERS.items():
        baton.run(magic + change)
        for there in ("", "%%gpu\n", ""):
            (shown,) = baton.run(f"{there}Fraction(1, 3)").all("execute_result")
            assert sorted(shown["data"]) == kinds, change


@HERE_AND_THERE
def test_ipythons_own_printers_come_back(baton: Baton, magic: str) -> None:
    baton.run(
        "from collections import Counter\nfrom IPython.lib import pretty\n"
        "plain = get_ipython().display_formatter.formatters['text/plain']\n"
        "def show(value, printer, cycle): printer.text('shown')"
    )
    look = "print(repr(plain(Counter('a'))), plain(1.5), pretty.pretty({1: 2}), pretty.pretty(Counter('b')))"
    change = (
        "old = [plain.for_type_by_name('collections', 'Counter', show), plain.for_type(float, show),"
        " pretty.for_type(dict, show), pretty.for_type_by_name('collections', 'Counter', show)]"
    )
    baton.run(magic + change)
    for there in ("", "%%gpu\n"):
        assert baton.run(there + look).text() == "'shown' shown shown shown\n"
    baton.run(
        f"{magic}plain.for_type(Counter, old[0]); plain.for_type(float, old[1]); pretty.for_type(dict, old[2])\n"
        "pretty.for_type_by_name('collections', 'Counter', old[3]); pretty._type_pprinters.pop(Counter, None);"
    )
    for there in ("", "%%gpu\n"):
        expected = "\"Counter({'a': 1})\" 1.5 {1: 2} Counter({'b': 1})\n"
        assert baton.run(there + look).text() == expected


@HERE_AND_THERE
def test_a_class_that_its_first_instance_makes_ready(baton: Baton, magic: str) -> None:
    other = "" if magic else "%%gpu\n"
    look = "''.join(text for _, text in lexer.get_tokens('x = 1'))"
    baton.run(f"{magic}from pygments.lexers import PythonLexer\nlexer = PythonLexer()\n{look}")
    assert baton.run(other + look).result == r"'x = 1\n'"
    assert baton.run(other + look.replace("lexer", "PythonLexer()")).result == r"'x = 1\n'"


@HERE_AND_THERE
def test_a_background_job_given_as_text(baton: Baton, magic: str) -> None:
    baton.run(
        "from IPython.lib import backgroundjobs\njobs = backgroundjobs.BackgroundJobManager()\nseen = []\n"
        "def note(n): seen.append(n)"
    )
    baton.run(f"{magic}job = jobs.new('note(2)'); job.join(); status = job.status")
    assert baton.value("seen, status") == "([2], 'Completed')"


IMPORT_HOOK = """
import importlib.util, sys
source = 'def f(): return 42'
def is_mine(name): return name in ('shelf', 'shelf.book')
class Shelf:
    def find_spec(self, name, path, target=None):
        if is_mine(name):
            return importlib.util.spec_from_loader(name, Loader(), is_package=name == 'shelf')
class Loader:
    def create_module(self, spec): return None
    def exec_module(self, module): exec(source, vars(module))
shelf_finder = Shelf()
sys.meta_path.append(shelf_finder)
"""


@HERE_AND_THERE
def test_what_an_import_hook_of_the_notebook_finds(baton: Baton, magic: str) -> None:
    other = "" if magic else "%%gpu\n"
    baton.run(f"{magic}{IMPORT_HOOK}from shelf.book import f\nimport shelf.book\nfound = [shelf.book, f]")
    assert baton.run(f"{other}f(), shelf.book.f(), found[1]()").result == "(42, 42, 42)"
    assert baton.run(f"{other}import shelf.book as again\nagain.f()").result == "42"
    count = "sum(type(finder).__name__ == 'Shelf' for finder in __import__('sys').meta_path)"
    assert baton.run(other + count).result == baton.run(magic + count).result == "1"
    baton.run(f"{other}import sys; sys.meta_path.remove(shelf_finder)")
    assert baton.run(magic + count).result == "0"


HOOK_FILE = """
import sys, importlib.util
class Loader:
    def create_module(self, spec): return None
    def exec_module(self, module): exec("def f(): return 42", vars(module))
class Finder:
    def find_spec(self, name, path, target=None):
        if name in ("virtual", "called"): return importlib.util.spec_from_loader(name, Loader())
def install(): sys.meta_path.append(Finder())
"""


@HERE_AND_THERE
@pytest.mark.parametrize("installs", [True, False])
def test_what_an_import_hook_of_an_own_file_finds(baton: Baton, magic: str, installs: bool) -> None:
    other = "" if magic else "%%gpu\n"
    (baton.folder / "nbhook.py").write_text(HOOK_FILE + "install()\n" * installs)
    install = "import nbhook" if installs else "import nbhook; nbhook.install()"
    cell = baton.run(f"{magic}{install}\nfrom virtual import f\nimport called")
    assert cell.reply["status"] == "ok", cell.traceback
    assert baton.run(f"{other}f()").result == "42"
    assert baton.run(f"{other}called.f(), f()").result == "(42, 42)"
    count = "sum(type(finder).__name__ == 'Finder' for finder in __import__('sys').meta_path)"
    assert baton.run(other + count).result == baton.run(magic + count).result == "1"


MISTAKES = {
    "a shape": "torch.zeros(2, 3, device='cuda') @ torch.zeros(4, 5, device='cuda')",
    "two devices": "torch.zeros(2, device='cuda') + torch.zeros(2)",
    "on the CPU": "torch.zeros(2, 3) @ torch.zeros(4, 5)",
    "a path": "open('/no/such/file')",
    "a script": "%run failing.py",
    "a question": "import pathlib; pathlib.Path('missing').read_text()",
    "printed": "try:\n    torch.zeros(2, device='cuda') + torch.zeros(2)\nexcept RuntimeError:\n    traceback.print_exc()",
    "logged": "try:\n    on_gpu @ on_gpu[0, :2]\nexcept RuntimeError:\n    logging.exception('failed')",
    "in a thread": "thread = threading.Thread(target=lambda: on_gpu @ on_gpu[0, :2])\nthread.start(); thread.join()",
}
WARNINGS = {
    "softmax": "F.softmax(on_gpu)",
    "a loss": "F.mse_loss(on_gpu, on_gpu[:, :1])",
    "a copy": "torch.tensor(on_gpu)",
}
ON_GPU = (
    "import logging, threading, traceback, warnings\nimport torch\nimport torch.nn.functional as F\n"
    "on_gpu = torch.zeros(3, 3, device='cuda')"
)


@HERE_AND_THERE
def test_a_traceback_has_no_frame_of_this_package(baton: Baton, magic: str) -> None:
    baton.run(f"{ON_GPU}\nwith open('failing.py', 'w') as script:\n    script.write('def f():\\n    1 / 0\\nf()')")
    for what, mistake in MISTAKES.items():
        cell = baton.run(magic + mistake)
        text = cell.traceback if cell.all("error") else cell.text("stderr")
        assert "Error" in text, what
        assert "baton_shim" not in text, f"{what}: {text}"
    baton.run("%env BATON_TRACEBACKS=whole")
    assert "baton_shim" in baton.run(magic + MISTAKES["two devices"]).traceback


@HERE_AND_THERE
def test_a_warning_is_at_the_students_line(baton: Baton, magic: str) -> None:
    baton.run(ON_GPU)
    said = baton.run(f"{magic}last = on_gpu.reshape(3, 3, 1).T").text("stderr")  # torch says this once in a process
    assert "Warning" in said and "baton_shim" not in said
    for what, code in WARNINGS.items():
        assert baton.run(f"{magic}for _ in range(3):\n    last = {code}").text("stderr").count("Warning") == 1, what
        caught = baton.run(
            f"{magic}with warnings.catch_warnings(record=True) as seen:\n    warnings.simplefilter('always')\n"
            f"    last = {code}\n    last = {code}\n[(one.filename == (lambda: 0).__code__.co_filename, one.lineno) "
            "for one in seen]"
        )
        first = 4 if magic else 3
        assert caught.result == f"[(True, {first}), (True, {first + 1})]", what
        once = (
            f"with warnings.catch_warnings():\n    warnings.simplefilter('once')\n    last = {code}\n    last = {code}"
        )
        assert baton.run(magic + once).text("stderr").count("Warning") == 1, what
        ignored = "with warnings.catch_warnings():\n    warnings.filterwarnings('ignore', module='__main__')"
        assert baton.run(f"{magic}{ignored}\n    last = {code}").text("stderr") == "", what
