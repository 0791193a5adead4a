"""Random state, settings and the process around a cell, in both directions."""

from __future__ import annotations

import itertools
import reprlib
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from baton_shim.state.message import split
from baton_shim.surroundings.patches import owners

if TYPE_CHECKING:
    from conftest import Baton

HERE_AND_THERE = pytest.mark.parametrize("magic", ["", "%%gpu\n"], ids=["here", "there"])


def draws(baton: Baton, setup: str, draw: str) -> None:
    """A stream of random numbers continues as if there were one kernel."""
    baton.run(setup)
    expected = [str(baton.run(draw).result) for _ in range(6)]
    baton.run(setup)
    mixed = [str(baton.run(("%%gpu\n" if number in (1, 2, 4) else "") + draw).result) for number in range(6)]
    assert mixed == expected
    assert len(set(expected)) == 6


def test_random_goes_on(baton: Baton) -> None:
    draws(baton, "import random; random.seed(7)", "random.random()")
    draws(baton, "random.seed(7)", "random.gauss(0, 1)")


def test_numpy_random_goes_on(baton: Baton) -> None:
    draws(baton, "import numpy as np; np.random.seed(7)", "float(np.random.rand())")
    draws(baton, "np.random.seed(7)", "float(np.random.normal())")


def test_torch_random_goes_on(baton: Baton) -> None:
    draws(baton, "import torch; torch.manual_seed(7)", "torch.rand(()).item()")


def test_a_seed_waits_for_the_library(baton: Baton) -> None:
    draw = "import numpy\nprint(numpy.random.rand())"
    baton.run("import numpy; numpy.random.seed(7)")
    expected = baton.run(draw).text()
    baton.run("numpy.random.seed(7); del numpy")
    there = "%%gpu\nimport sys\nprint('numpy' in sys.modules)\n" + draw
    assert baton.run(there).text() == "False\n" + expected


def test_a_seed_comes_home_before_the_library(baton: Baton) -> None:
    seed = "%%gpu\ndef seed():\n    import numpy\n    numpy.random.seed(7)\nseed()"
    assert baton.run(seed).reply["status"] == "ok"
    assert baton.value("'numpy' in __import__('sys').modules") == "False"
    baton.lose_session()
    draw = "import numpy\nprint(numpy.random.rand())"
    there = baton.run("%%gpu\n" + draw).text()
    assert there == baton.run("numpy.random.seed(7)\n" + draw).text()
    waiting = "[f for f in __import__('sys').meta_path if 'numpy' in getattr(f, 'waiting', ())]"
    assert baton.value(waiting) == "[]"


SETTINGS = [
    ("os.environ['COURSE'] = 'é1'", "os.environ.get('COURSE')", "'é1'"),
    ("warnings.simplefilter('ignore')", "warnings.filters[0][0]", "'ignore'"),
    (
        "warnings.filterwarnings('error', 'a.*b', UserWarning, 'some', 3)",
        "warnings.filters[0][1].pattern, warnings.filters[0][1].flags, *warnings.filters[0][2:3]",
        "('a.*b', 34, UserWarning)",
    ),
    ("logging.getLogger('a.b').setLevel('DEBUG')", "logging.getLogger('a.b').level", "10"),
    ("logging.disable(logging.INFO)", "logging.root.manager.disable", "20"),
    (
        "logging.basicConfig(level='INFO', format='<%(message)s>')",
        "logging.root.level, [h.formatter._fmt for h in logging.root.handlers if type(h) is logging.StreamHandler]",
        "(20, ['<%(message)s>'])",
    ),
    ("sys.path.insert(0, '/first'); sys.path.append('/last')", "sys.path[0], sys.path[-1]", "('/first', '/last')"),
    ("sys.argv = ['train.py', '--epochs=3']", "sys.argv", "['train.py', '--epochs=3']"),
    ("sys.setswitchinterval(0.25)", "sys.getswitchinterval()", "0.25"),
    (
        "import gc, socket; gc.disable(); gc.set_threshold(800, 9, 9); socket.setdefaulttimeout(7.5)",
        "gc.isenabled(), gc.get_threshold(), socket.getdefaulttimeout()",
        "(False, (800, 9, 9), 7.5)",
    ),
    ("import time; os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()", "time.strftime('%H', time.localtime(0))", "'09'"),
    ("sys.setrecursionlimit(1234)", "sys.getrecursionlimit()", "1234"),
    ("locale.setlocale(locale.LC_ALL, 'C.UTF-8')", "locale.setlocale(locale.LC_NUMERIC)", "'C.UTF-8'"),
]
LIBRARIES = [
    ("decimal", "decimal.getcontext().prec = 5", "str(decimal.Decimal(1) / 3)", "'0.33333'"),
    (
        "decimal",
        "mine = decimal.Context(prec=4); decimal.setcontext(mine)",
        "mine is decimal.getcontext(), str(decimal.Decimal(1) / 3)",
        "(True, '0.3333')",
    ),
    (
        "decimal",
        "decimal.getcontext().traps[decimal.Inexact] = True",
        "decimal.getcontext().traps[decimal.Inexact], decimal.getcontext().flags[decimal.Inexact]",
        "(True, True)",
    ),
    ("numpy", "numpy.seterr(divide='raise')", "numpy.geterr()['divide']", "'raise'"),
    (
        "numpy",
        "seen = []; numpy.seterr(divide='call'); numpy.setbufsize(16384); call = numpy.seterrcall(lambda *a: seen.append(1))",
        "(numpy.ones(1) / 0)[0], numpy.geterr()['divide'], numpy.getbufsize(), seen.clear()",
        "(np.float64(inf), 'call', 16384, None)",
    ),
    ("numpy", "numpy.set_printoptions(precision=2)", "str(numpy.array([1 / 3]))", "'[0.33]'"),
    ("pandas", "pandas.options.display.max_rows = 7", "pandas.get_option('display.max_rows')", "7"),
    (
        "matplotlib",
        "matplotlib.rcParams['lines.linewidth'] = 7",
        "matplotlib.rcParams['lines.linewidth']",
        "7.0",
    ),
    ("torch", "torch.set_default_dtype(torch.float64)", "torch.get_default_dtype()", "torch.float64"),
    ("torch", "torch.set_grad_enabled(False)", "torch.is_grad_enabled()", "False"),
    ("torch", "torch.set_num_threads(3)", "torch.get_num_threads()", "3"),
    ("torch", "torch.use_deterministic_algorithms(True)", "torch.are_deterministic_algorithms_enabled()", "True"),
    ("torch", "torch.autograd.set_detect_anomaly(True)", "torch.is_anomaly_enabled()", "True"),
    (
        "sklearn",
        "sklearn.set_config(transform_output='pandas', display='text')",
        "sklearn.get_config()['transform_output'], sklearn.get_config()['display']",
        "('pandas', 'text')",
    ),
    ("mpmath", "mpmath.mp.dps = 30", "str(mpmath.mpf(1) / 3)[:25]", "'0.33333333333333333333333'"),
    (
        "sympy",
        "_ = sympy.assumptions.assume.global_assumptions.add(sympy.Q.positive(sympy.Symbol('x')))",
        "sympy.ask(sympy.Q.negative(sympy.Symbol('x')))",
        "False",
    ),
    ("jax", "jax.config.update('jax_enable_x64', True)", "str(jax.numpy.ones(1).dtype)", "'float64'"),
    ("jax", "jax.config.update('jax_default_prng_impl', 'rbg')", "jax.config.jax_default_prng_impl", "'rbg'"),
    (
        "matplotlib_inline.config",
        "%config InlineBackend.figure_formats = {'svg', 'retina'}",
        "sorted(matplotlib_inline.config.InlineBackend.instance().figure_formats)",
        "['retina', 'svg']",
    ),
]
CALLS = [
    ("_ = os.umask(0o27)", "open('/proc/self/status').read().split('Umask:')[1].split()[0]", "'0027'"),
    ("csv.register_dialect('semi', delimiter=';')", "next(csv.reader(['a;b'], 'semi'))", "['a', 'b']"),
    ("csv.unregister_dialect('semi')", "'semi' in csv.list_dialects()", "False"),
    ("_ = csv.field_size_limit(5000)", "csv.field_size_limit()", "5000"),
    ("mimetypes.add_type('course/x', '.crs')", "mimetypes.guess_type('a.crs')[0]", "'course/x'"),
    ("calendar.setfirstweekday(6)", "calendar.weekheader(2)", "'Su Mo Tu We Th Fr Sa'"),
    ("_ = gettext.textdomain('course')", "gettext.textdomain()", "'course'"),
    (
        "mark = '!'\ncodecs.register_error('mark', lambda error: (mark, error.end))",
        "'aé'.encode('ascii', 'mark')",
        "b'a!'",
    ),
    (
        "class Point:\n    x = 1\ndef reduced(point): return rebuilt, (point.x,)\n"
        "def rebuilt(x): return (x, 'by copyreg')\ncopyreg.pickle(Point, reduced)",
        "copy.copy(Point())",
        "(1, 'by copyreg')",
    ),
    (
        "logging.addLevelName(25, 'NOTE')\nclass Log(logging.Logger): pass\nlogging.setLoggerClass(Log)",
        "logging.getLevelName(25), logging.getLoggerClass() is Log",
        "('NOTE', True)",
    ),
    (
        "mpl.colormaps.register(ListedColormap(['red', 'blue'], name='two'))",
        "bool(mpl.colormaps['two'](0.0)[0] == 1.0)",
        "True",
    ),
    (
        "torch.set_warn_always(True); torch.backends.cuda.enable_math_sdp(False)",
        "torch.is_warn_always_enabled()",
        "True",
    ),
    ("torch.set_warn_always(False)", "torch.backends.cuda.math_sdp_enabled()", "False"),
    ("_ = polars.Config(float_precision=2, tbl_rows=3)", "str(polars.Series([1 / 3])).split()[-2]", "'0.33'"),
    ("np.set_printoptions(formatter={'float': lambda value: f'<{value:.1f}>'})", "str(np.ones(1))", "'[<1.0>]'"),
    ("np.set_printoptions(formatter=None)", "str(np.ones(1))", "'[1.]'"),
    ("pd.options.display.float_format = lambda value: f'<{value:.1f}>'", "str(pd.Series([1.0]))[4:9]", "'<1.0>'"),
    (
        "from tqdm import tqdm\ntqdm.pandas(desc='Rows', disable=True)",
        "pd.Series([1, 2]).progress_apply(lambda n: n + 1).tolist(), hasattr(pd.DataFrame, 'progress_map')",
        "([2, 3], True)",
    ),
    ("pd.reset_option('display.float_format')", "str(pd.Series([1.0]))[5:8]", "'1.0'"),
    (
        "import xml.etree.ElementTree as trees\ntrees.register_namespace('course', 'http://course')",
        "trees.tostring(trees.Element('{http://course}a'))",
        "b'<course:a xmlns:course=\"http://course\" />'",
    ),
    (
        "import sqlite3\nclass Place:\n    n = 7\nsqlite3.register_adapter(Place, lambda place: place.n)\n"
        "sqlite3.register_converter('place', lambda text: ('place', int(text)))",
        "sqlite3.connect(':memory:', detect_types=sqlite3.PARSE_COLNAMES).execute('select ? as \"x [place]\"', "
        "(Place(),)).fetchall()",
        "[(('place', 7),)]",
    ),
    (
        "import io, urllib.request\nclass Course(urllib.request.BaseHandler):\n    def course_open(self, request):\n"
        "        return io.BytesIO(request.full_url.encode())\n"
        "urllib.request.install_opener(urllib.request.build_opener(Course))",
        "urllib.request.urlopen('course:one').read()",
        "b'course:one'",
    ),
]
PLACES = [
    ("reprlib.aRepr.maxlist = 2", "reprlib.repr([1, 2, 3])", "'[1, 2, ...]'"),
    ("from reprlib import aRepr\naRepr.maxdict = 1", "reprlib.repr({1: 1, 2: 2})", "'{1: 1, ...}'"),
    ("decimal.DefaultContext.prec = 7", "decimal.Context().prec", "7"),
    ("torch.backends.cudnn.allow_tf32 = False", "torch.backends.cudnn.allow_tf32", "False"),
    ("torch.backends.cuda.matmul.allow_tf32 = True", "torch.backends.cuda.matmul.allow_tf32", "True"),
    ("json.encoder.ESCAPE_DCT['e'] = 'E'", "json.encoder.ESCAPE_DCT['e']", "'E'"),
    (
        "class Metres: pass\nunits.registry[Metres] = units.ConversionInterface()",
        "type(units.registry[Metres]).__name__",
        "'ConversionInterface'",
    ),
    ("del units.registry[Metres]", "Metres in units.registry", "False"),
    (
        "class Finder: pass\n@pkgutil.iter_importer_modules.register(Finder)\n"
        "def modules(finder, prefix=''): return ['mine']",
        "pkgutil.iter_importer_modules(Finder())",
        "['mine']",
    ),
]
SHOWING = [
    ("get_ipython().ast_node_interactivity = 'last'", "get_ipython().ast_node_interactivity", "'last'"),
    ("%precision 3", "1 / 3", "0.333"),
    ("%xmode Plain", "get_ipython().InteractiveTB.mode", "'Plain'"),
    ("%pprint", "list(range(30))", str(list(range(30)))),
]


REPLACED = [
    # A cell, and the value of the last expression in it.
    (
        "import functools, math, textwrap, time, numpy as np\nroot = np.sqrt; wait = time.sleep; cut = textwrap.dedent\n"
        "kept = [math.sin, textwrap.TextWrapper]",
        None,
    ),
    (
        "np.sqrt = lambda x: 'mine'; time.sleep = lambda s: s; math.sin = str; textwrap.TextWrapper = dict\n"
        "@functools.wraps(cut)\ndef cut_less(text): return f'<{cut(text)}>'\ntextwrap.dedent = cut_less",
        None,
    ),
    (
        "np.sqrt(4), time.sleep(3), math.sin(1), textwrap.TextWrapper(), textwrap.dedent(' a'), cut_less(' b')",
        "('mine', 3, '1', {}, '<a>', '<b>')",
    ),
    ("root(4.0) + kept[0](0.0), wait(0), cut(' a'), kept[1]().width", "(np.float64(2.0), None, 'a', 70)"),
    ("np.sqrt = root; time.sleep = wait; math.sin, textwrap.TextWrapper = kept; textwrap.dedent = cut", None),
    (
        "np.sqrt is root, time.sleep is wait, [math.sin, textwrap.TextWrapper] == kept, textwrap.dedent is cut",
        "(True, True, True, True)",
    ),
    ("np.sqrt(4.0), math.sin(0.0), textwrap.dedent(' a'), cut_less(' b')", "(np.float64(2.0), 0.0, 'a', '<b>')"),
]


@pytest.mark.parametrize("remote", ["0 1 2 3 4 5 6", "0 1 3 5 6", "0 2 4 6", "1 3 5", "2 3 5 6", "1 2 5"])
def test_functions_of_libraries_are_replaced_and_put_back(baton: Baton, remote: str) -> None:
    baton.run("import baton_shim")
    for number, (code, expected) in enumerate(REPLACED):
        cell = baton.run(f"%%gpu\n{code}" if str(number) in remote else code)
        assert (number, cell.all("error"), cell.result) == (number, [], expected)
    for magic in ("", "%%gpu\n"):
        assert baton.run(f"{magic}{REPLACED[5][0]}").result == REPLACED[5][1]


def hold_in_both(baton: Baton, magic: str, settings: list[tuple[str, str, str]]) -> None:
    for change, look, expected in settings:
        cell = baton.run(magic + change)
        assert (cell.reply["status"], cell.text("stderr")) == ("ok", ""), cell.traceback
        assert (look, baton.run(look).result) == (look, expected)
        assert (look, baton.run("%%gpu\n" + look).result) == (look, expected)
    at_the_end = [(look, baton.run(look).result) for _, look, _ in settings]
    baton.lose_session()
    assert [(look, baton.run("%%gpu\n" + look).result) for _, look, _ in settings] == at_the_end


@HERE_AND_THERE
def test_a_setting_holds_in_both_kernels(baton: Baton, magic: str) -> None:
    baton.run(f"{magic}import os, sys, warnings, logging, locale")
    hold_in_both(baton, magic, SETTINGS)


@pytest.fixture(scope="module")
def fonts() -> None:
    """Matplotlib lists them once for each user, and the cell that begins this gets a warning if it takes seconds."""
    subprocess.run([sys.executable, "-c", "import matplotlib.font_manager"], check=True)


@pytest.mark.usefixtures("fonts")
@HERE_AND_THERE
def test_a_setting_of_a_library(baton: Baton, magic: str) -> None:
    baton.run("%%gpu\n" + "\n".join(dict.fromkeys(f"import {library}" for library, *_ in LIBRARIES)))
    hold_in_both(baton, magic, [(change, look, expected) for _, change, look, expected in LIBRARIES])


def test_each_hook_of_torch_has_its_own_number(baton: Baton) -> None:
    baton.run("import torch\nlayer, seen = torch.nn.Linear(1, 1), []")
    for number, magic in enumerate(("", "%%gpu\n", "%%gpu\n", "")):
        baton.run(f"{magic}handle = layer.register_forward_hook(lambda *_: seen.append({number}))")
    assert (
        baton.run("layer(torch.ones(1)); handle.remove(); layer(torch.ones(1)); seen").result == "[0, 1, 2, 3, 0, 1, 2]"
    )


def test_settings_and_seeds_of_keras_and_tensorflow(baton: Baton) -> None:
    """A single test, because each kernel takes ten seconds to load the libraries."""
    for magic in ("", "%%gpu\n"):
        imported = baton.run(f"{magic}import keras, random, tensorflow\nfrom keras.layers import Dense")
        assert imported.reply["status"] == "ok", imported.traceback

    def draw(function: str, *magics: str) -> list[str | None]:
        return [baton.run(f"{magic}float({function}(()))").result for magic in magics]

    for module, seed in {
        "keras": "keras.utils.set_random_seed(3)",
        "tensorflow": "tensorflow.random.set_seed(5)",
    }.items():
        function = f"{module}.random.uniform"
        baton.run(seed)
        plain = draw(function, "", "", "", "")
        for magic in ("", "%%gpu\n"):
            baton.run(magic + seed)
            assert draw(function, "%%gpu\n", "", "%%gpu\n", "%%gpu\n") == plain
    baton.run("keras.utils.set_random_seed(3)")
    plain = draw("tensorflow.random.uniform", "")
    baton.run("%%gpu\nkeras.utils.set_random_seed(3)")
    assert draw("tensorflow.random.uniform", "") == plain
    for magic, size, other in (("", "64", "bfloat16"), ("%%gpu\n", "32", "float16")):
        floats = (f"keras.backend.set_floatx('float{size}')", "keras.config.floatx()", f"'float{size}'")
        policy = (f"keras.mixed_precision.set_global_policy('mixed_{other}')", "Dense(1).compute_dtype", f"'{other}'")
        hold_in_both(baton, magic, [floats, policy])
        baton.run("%%gpu\nimport keras\nfrom keras.layers import Dense")
    names = [baton.run(f"{magic}Dense(1).name").result for magic in ("", "%%gpu\n", "%%gpu\n", "")]
    assert len(set(names)) == 4


@HERE_AND_THERE
def test_what_a_call_registers(baton: Baton, magic: str) -> None:
    modules = "os, csv, mimetypes, calendar, threading, gettext, codecs, copy, copyreg, logging, polars, torch"
    baton.run(
        f"{magic}import {modules}, matplotlib as mpl, matplotlib.pyplot, numpy as np, pandas as pd\n"
        "from matplotlib.colors import ListedColormap"
    )
    hold_in_both(baton, magic, CALLS)


@HERE_AND_THERE
def test_what_a_cell_puts_into_objects_of_libraries(baton: Baton, magic: str) -> None:
    baton.run(f"{magic}import reprlib, decimal, json, pkgutil, torch, matplotlib.units as units")
    hold_in_both(baton, magic, PLACES)


@HERE_AND_THERE
def test_how_values_are_shown(baton: Baton, magic: str) -> None:
    hold_in_both(baton, magic, SHOWING)


def test_a_setting_of_jax_from_the_cell_that_imports_it(baton: Baton) -> None:
    baton.run("import jax; jax.config.update('jax_enable_x64', True)")
    assert baton.run("%%gpu\nimport jax.numpy\nstr(jax.numpy.ones(1).dtype)").result == "'float64'"


@pytest.mark.parametrize("first_line", ["", "%%gpu\n"], ids=["to the session", "to the notebook"])
def test_libraries_are_imported_with_the_environment_that_the_cell_has_set(baton: Baton, first_line: str) -> None:
    """The other end imports tqdm, which reads the variable only then, to rebuild `kinds`."""
    other_line = "%%gpu\n" if not first_line else ""
    baton.run(f"{first_line}import os\nos.environ['TQDM_MININTERVAL'] = '7'\nimport tqdm\nkinds = [tqdm.tqdm]")
    interval = "kinds[0]([], file=__import__('io').StringIO()).mininterval"
    assert baton.run(f"{other_line}{interval}").result == "7.0"
    baton.run(f"{first_line}del os.environ['TQDM_MININTERVAL']")
    assert baton.run(f"{other_line}'TQDM_MININTERVAL' in os.environ").result == "False"


def test_a_setting_is_taken_back(baton: Baton) -> None:
    baton.run("import os, pandas as pd\nos.environ['COURSE'] = '1'\npd.options.display.max_rows = 7")
    baton.run("%%gpu\ndel os.environ['COURSE']\npd.reset_option('display.max_rows')")
    assert baton.run("'COURSE' in os.environ, pd.options.display.max_rows").result == "(False, 60)"
    assert baton.run("%%gpu\n'COURSE' in os.environ, pd.options.display.max_rows").result == "(False, 60)"


def test_env_and_cd(baton: Baton) -> None:
    (baton.folder / "part").mkdir()
    baton.run("import os")
    cell = baton.run("%%gpu\n%env COURSE=two\n%cd part")
    assert cell.reply["status"] == "ok", cell.traceback
    assert baton.value("os.environ['COURSE'], os.getcwd()") == repr(("two", str(baton.folder / "part")))
    assert baton.run("%cd ..").reply["status"] == "ok"
    assert baton.run("%%gpu\nos.getcwd()").result == repr(str(baton.folder))


def test_what_belongs_to_the_machine_stays(baton: Baton) -> None:
    names = ["PATH", "HOME", "LD_PRELOAD_X", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "JPY_X", "BATON_X", "TMPDIR"]
    baton.run(f"import os\nfor name in {names}: os.environ[name] = 'of the notebook'")
    baton.run("os.environ['COURSE'] = '1'")
    seen = baton.run(f"%%gpu\n[name for name in {names} if os.environ.get(name) == 'of the notebook']")
    assert seen.result == "[]"
    baton.run(f"%%gpu\nfor name in {names}: os.environ[name] = 'of the session'")
    assert baton.value(f"[name for name in {names} if os.environ[name] != 'of the notebook']") == "[]"


def test_one_that_fails_costs_only_itself(baton: Baton) -> None:
    baton.run("import os, sys")
    other = baton.folder / "other"
    other.mkdir()
    baton.before_finish = other.rmdir
    cell = baton.run(f"%%gpu\nos.chdir({str(other)!r})\nos.environ['COURSE'] = '1'\nx = 1")
    assert cell.reply["status"] == "ok"
    assert "warning: The working directory stays" in cell.text("stderr")
    assert baton.value("x, os.environ['COURSE']") == "(1, '1')"


def test_an_error_and_an_interrupt_bring_them_home(baton: Baton) -> None:
    baton.run("import os, time, random; random.seed(1)")
    baton.run("%%gpu\nos.environ['COURSE'] = '1'\n1 / 0")
    assert baton.value("os.environ['COURSE']") == "'1'"
    code = "%%gpu\nos.environ['COURSE'] = '2'\nprint('running', flush=True)\ntime.sleep(60)"
    baton.run(code, interrupt_when=lambda: "running" in baton.remote_text())
    assert baton.value("os.environ['COURSE']") == "'2'"


def test_imports_of_a_cell_are_modules_here(baton: Baton) -> None:
    baton.run("%%gpu\nimport json, os.path as path\nfrom collections import deque")
    assert baton.value("json is __import__('json'), path.__name__, deque") == ("(True, 'posixpath', collections.deque)")


def test_parts_of_packages(baton: Baton) -> None:
    baton.run("import xml.dom.minidom, xml.sax.saxutils as s\nimport email.mime.text\nimport unittest.mock")
    cell = baton.run("%%gpu\nimport email.mime.image\nxml.dom.minidom.parseString('<a/>').documentElement.tagName")
    assert cell.result == "'a'", cell.traceback
    there = baton.run("%%gpu\nimport sys\nemail.mime.text.__name__, 'unittest' in sys.modules")
    assert there.result == "('email.mime.text', False)", there.traceback
    assert baton.value("email.mime.image.__name__") == "'email.mime.image'"


def test_an_unchanged_cell_adds_next_to_nothing(baton: Baton) -> None:
    baton.run("import random, os; random.seed(1)")
    baton.run("%%gpu\nx = 1")
    baton.run("%%gpu\nx = 1")
    first, *_, last = (sum(len(part["here"]) for part in call["state"]["stream"]) for call in baton.calls)
    assert last < 400 < first


def test_the_sessions_own_handlers_stay_there(baton: Baton) -> None:
    baton.run("import signal\nbefore = list(map(signal.getsignal, range(1, signal.NSIG)))")
    baton.run("%%gpu\npass")
    assert baton.run("list(map(signal.getsignal, range(1, signal.NSIG))) == before").result == "True"


def test_a_class_that_cells_name_gives_a_cell_without_objects_none(baton: Baton) -> None:
    baton.run("import fractions\nhalf = fractions.Fraction(1, 2)")
    baton.run("%%gpu\nboth = [half, fractions.Fraction(1, 3)]")
    baton.run("%%gpu\npass")
    stream = b"".join(part["here"] for part in baton.calls[-1]["state"]["stream"])
    header, _, _ = split(memoryview(stream))
    assert header.plain


def test_figures_come_after_the_value_or_the_error(baton: Baton) -> None:
    baton.run("%matplotlib inline\nimport matplotlib.pyplot as plt")
    for cell, last in (("plt.plot([1])\n7", "execute_result"), ("plt.plot([1])\n1 / 0", "error")):
        for first in ("", "%%gpu\n", "%%gpu --no-return\n"):
            ran = baton.run(first + cell)
            shown = [kind for kind, _ in ran.messages if kind in ("execute_result", "error", "display_data")]
            shown += [kind for kind, _ in ran.remote]
            without = first == "%%gpu --no-return\n" and last == "execute_result"
            assert shown == (["display_data"] * 2 if without else [last, "display_data"]), (first, shown)


def test_a_result_of_a_cell_that_the_cell_runs(baton: Baton) -> None:
    ran = baton.run("%%gpu\n_ = get_ipython().run_cell('1'); display('after'); 3")
    assert [content["data"]["text/plain"] for content in ran.all("display_data")] == ["1", "'after'"]
    assert ran.result == "3"


def test_an_error_of_a_cell_that_the_cell_runs(baton: Baton) -> None:
    for error, code in (("ZeroDivisionError", "1 / 0"), ("SyntaxError", "1 +")):
        for first in ("", "%%gpu\n"):
            ran = baton.run(f"{first}_ = get_ipython().run_cell('{code}'); display('after')")
            both = [*ran.messages, *ran.remote]
            shown = [(kind, content.get("ename")) for kind, content in both if kind in ("error", "display_data")]
            assert shown == [("error", error), ("display_data", None)], (code, first, shown)
            assert ran.reply["status"] == "ok"


def test_figures_that_pyplot_knows(baton: Baton) -> None:
    baton.run("import matplotlib; matplotlib.use('agg'); import matplotlib.pyplot as plt")
    baton.run("fig, ax = plt.subplots(num=4); other = plt.figure(7); plt.figure(4)")
    cell = baton.run("%%gpu\nax.plot([1, 2])\nplt.title('there')\nplt.get_fignums(), plt.gcf() is fig")
    assert cell.result == "([4, 7], True)", cell.traceback
    assert cell.all("display_data") == []
    assert baton.value("plt.gcf() is fig, ax.get_title(), len(ax.lines), plt.figure(7) is other") == (
        "(True, 'there', 1, True)"
    )
    baton.run("%%gpu\nplt.close(4)\nplt.figure('named')\nplt.plot([3])")
    assert baton.value("plt.get_fignums(), plt.gcf().get_label(), len(plt.gca().lines)") == "([7, 8], 'named', 1)"
    baton.lose_session()
    assert baton.run("%%gpu\nplt.get_fignums(), plt.gcf().get_label()").result == "([7, 8], 'named')"
    baton.run("%%gpu\nplt.close('all')")
    assert baton.value("plt.get_fignums()") == "[]"
    assert baton.run("%%gpu\nplt.get_fignums()").result == "[]"


def test_a_figure_that_both_kernels_draw_at_several_sizes(baton: Baton) -> None:
    baton.run(
        "import hashlib, io, matplotlib.pyplot as plt, numpy as np\n"
        "def make():\n    global fig, ax\n    fig, ax = plt.subplots()\n"
        "    fig.colorbar(ax.imshow(np.eye(3)), ax=ax).set_label('label')\n"
        "def draw():\n    ax.set_title('title'); fig.canvas.draw()\n"
        "def save(dpi):\n    file = io.BytesIO(); fig.savefig(file, format='raw', dpi=dpi)\n"
        "    return hashlib.md5(file.getvalue()).hexdigest()"
    )
    seen = set()
    for make, draw, save in itertools.product(("", "%%gpu\n"), repeat=3):
        baton.run(f"{make}make()")
        baton.run(f"{draw}draw()")
        seen.add(baton.run(f"{save}save(50), save(50), save(200)").result)
        baton.run("plt.close(fig)")
    assert len(seen) == 1


@pytest.mark.parametrize("backend", ["notebook", "widget"])
def test_figures_that_talk_with_the_front_end(baton: Baton, backend: str) -> None:
    """A `%%gpu` cell that chooses them does what an ordinary cell does: canvases and comms are in the notebook."""
    choose = f"%matplotlib {backend}\nimport matplotlib.pyplot as plt\nfig, ax = plt.subplots()"
    look = "plt.get_backend(), plt.get_fignums(), type(plt.gcf().canvas).__module__"
    seen = []
    for magic in ("", "%%gpu\n"):
        opened = baton.run(magic + choose)
        changed = baton.run(f"{magic}_ = ax.plot([1, 2])")
        assert changed.all("comm_open") == [] and changed.all("comm_msg") != []
        seen.append(([comm["target_name"] for comm in opened.all("comm_open")], baton.value(look)))
        closed = baton.run(f"{magic}plt.close('all')").all("comm_close")
        seen[-1] += (len(closed),)
        baton.run("%matplotlib inline")
    assert seen[0] == seen[1]
    assert seen[0][0] != [] and f"'{backend}'" in seen[0][1]


def test_handlers_of_the_notebook(baton: Baton) -> None:
    baton.run(
        "import io, logging\n"
        "class Lines(logging.Handler):\n"
        "    def emit(self, record): said.append(record.getMessage())\n"
        "said, text, log = [], io.StringIO(), logging.getLogger('course')\n"
        "log.addHandler(Lines())\n"
        "log.setLevel('DEBUG')"
    )
    baton.run("%%gpu\nlog.info('there'); log.addHandler(logging.StreamHandler(text)); log.info('both')")
    baton.run("log.info('here')")
    look = "said, text.getvalue(), len(log.handlers)"
    expected = "(['there', 'both', 'here'], 'both\\nhere\\n', 2)"
    assert (baton.run(look).result, baton.run("%%gpu\n" + look).result) == (expected, expected)
    baton.run("%%gpu\nlog.handlers.clear()")
    baton.run("log.info('nobody')")
    assert baton.run("said[-1], log.handlers").result == "('here', [])"


@pytest.mark.parametrize("comparison", [">= (3, 7)", "<= (3, 7)", "== (3, 7)", "!= (3, 7)"])
def test_a_comparison_assigns_nothing(comparison: str) -> None:
    assert not assigned(f"assert sys.version_info {comparison}")


@pytest.mark.parametrize(
    "operator", ["=", "+=", "-=", "*=", "**=", "/=", "//=", "%=", "@=", "&=", "|=", "^=", "<<=", ">>="]
)
def test_every_assignment_is_noticed(operator: str) -> None:
    assert assigned(f"reprlib.aRepr.maxlist {operator} 3") == ["maxlist"]


def assigned(code: str) -> list[str]:
    return [attribute for _, _, attribute in owners(code, {"sys": sys, "reprlib": reprlib}) if attribute]
