"""Cells without `%%gpu`, compared with a stock ipykernel: what a student sees is the same, to the last character.

Only memory addresses, times, and the numbers of processes and of cells' temporary files may differ. What a program
finds in the kernel itself is in `test_ordinary_kernels.py`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from end_to_end import Kernel, Place
from end_to_end.results import Result

PLACES = re.compile(r"0x[0-9a-f]+|ipykernel_\d+/\d+|\b\d+(\.\d+)?(e\+\d+)? ?[nµμum]?s\b")
FORGET = """
import sys, warnings
warnings.resetwarnings()
for name in [name for name in sys.modules if name.partition(".")[0] in {}]:
    del sys.modules[name]
get_ipython().run_line_magic("xmode", "Context")
get_ipython().run_line_magic("reset", "-f")
"""

HELPERS = {
    "fails.py": "def go():\n    return 1 / 0\ngo()\n",
    "broken.py": "def go(:\n    pass\n",
    "warns.py": "import warnings\nwarnings.warn('old', DeprecationWarning, stacklevel=2)\n"
    "warnings.warn('here', UserWarning)\nwarnings.warn('there', UserWarning, stacklevel=2)\n",
    "lacks.py": "import a_package_that_nobody_has\n",
    "outer.py": "import fails\n",
    "asks.py": "import traceback\nframes = [line.name for line in traceback.extract_stack()]\n"
    "frames = frames[frames.index('run_code') :]",
    "good.py": "def shapes(x):\n    raise ValueError(x)\nclass Model:\n    def fit(self, data=None): ...",
    "program.py": "import fails",
    "package/__init__.py": "from package import part\n",
    "package/part.py": "raise RuntimeError('part')\n",
}

CELLS = {
    "an error of a module": "import fails",
    "a syntax error of a module": "import broken",
    "a module that imports what is not here": "import lacks",
    "a module that imports one that fails": "import outer",
    "a package whose part fails": "import package",
    "an error caught": "import traceback\ntry:\n    import fails\nexcept Exception:\n    traceback.print_exc()",
    "warnings of a module": "import warnings\nwarnings.simplefilter('always')\nimport warns",
    "warnings as errors": "import warnings\nwarnings.simplefilter('error')\nimport warns",
    "the stack below a module": "import asks\nasks.frames",
    "an error in a function of a module": "import good\ngood.shapes((1, 2))",
    "a reload that fails": "import good, importlib, pathlib\npathlib.Path('good.py').write_text('1 / 0')\n"
    "importlib.reload(good)",
    "help of a module": "import good\nhelp(good.Model)",
    "a signature": "import good, inspect\nprint(inspect.signature(good.Model.fit))\ngood.shapes?",
    "a syntax error": "x = = 1",
    "an unknown name": "def f():\n    return unknown\nf()",
    "an error while an error is handled": "try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError('k') from e",
    "a plain traceback": "%xmode Plain\n1 / 0",
    "a minimal one": "%xmode Minimal\nimport fails",
    "a verbose one": "%xmode Verbose\nimport fails",
    "a context": "%xmode Context\nimport fails",
    "a documented one": "%xmode Docs\nimport good\ngood.shapes((1, 2))",
    "all modes after another": "for mode in ('Plain', 'Context', 'Verbose', 'Minimal', 'Docs'):\n"
    "    get_ipython().run_line_magic('xmode', mode)\n    try:\n        import fails\n"
    "    except ZeroDivisionError:\n        get_ipython().showtraceback()",
    "the last error once more": "try:\n    import fails\nexcept Exception:\n    get_ipython().showtraceback()\n%tb",
    "a warning of a cell": "import warnings\nwarnings.simplefilter('always')\ndef old():\n"
    "    warnings.warn('old', DeprecationWarning, stacklevel=2)\nold()",
    "a warning with its category caught": "import warnings\nwith warnings.catch_warnings(record=True) as seen:\n"
    "    warnings.simplefilter('always')\n    import warns\n[(w.filename, w.lineno, str(w.message)) for w in seen]",
    "the places where modules are sought": "import sys\n[type(f).__name__ if not isinstance(f, type) else f.__name__ "
    "for f in sys.meta_path], len(sys.path_hooks)",
    "the hook of displays": "import sys\ntype(sys.displayhook).__name__, sys.excepthook.__name__",
    "the debugger": "import pdb\ntry:\n    import fails\nexcept Exception:\n    import sys\n"
    "    frames, tb = [], sys.exc_info()[2]\n    while tb:\n        frames.append(tb.tb_frame.f_code.co_name)\n"
    "        tb = tb.tb_next\nframes",
    "a debugger in a cell": ("import good\nimport pdb; pdb.set_trace()\ny = 2", "p 1 + 1", "w", "n", "c"),
    "a debugger in a module": ("import pdb, good\npdb.run('good.Model()')", "s", "w", "c"),
    "%debug of a module's error": (
        "import good\ntry:\n    good.shapes(7)\nexcept ValueError:\n    get_ipython().showtraceback()\n%debug",
        "p x",
        "w",
        "u",
        "l",
        "q",
    ),
    "%debug of a statement": ("%debug 1 + 1", "n", "c"),
    "%pdb": ("%pdb on\nimport good\ngood.shapes(8)", "p x", "q"),
    "%pdb off": "%pdb off",
    "breakpoint": ("x = 1\nbreakpoint()\nx",),
    "input": ("input('name? ')", "Ada"),
    "a password": ("import getpass\ngetpass.getpass('word? ')", "secret"),
    "what asyncio runs": "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 7\nawait f()",
    "an error of asyncio": "import asyncio\nasync def f():\n    raise OSError(2, 'no')\nawait f()",
    "tasks of asyncio": "import asyncio\nasync def f(n):\n    await asyncio.sleep(0)\n    print(n)\n"
    "_ = await asyncio.gather(*map(f, range(3)))\nlen(asyncio.all_tasks()), type(asyncio.get_running_loop()).__name__",
    "an error in a task": "import asyncio\nasync def f():\n    import fails\nawait asyncio.create_task(f())",
    "async for at top": "async def g():\n    yield 1\n    yield 2\nasync for n in g():\n    print(n)",
    "%timeit as shown": "%timeit -n 1 -r 1 pass",
    "%%time as shown": "%%time\nx = 1",
    "%%timeit of an error": "%%timeit\nimport fails",
    "%prun": "%prun -q -r 1\n0",
    "%timeit": "get_ipython().run_line_magic('timeit', '-n 1 -r 1 -o -q 1').loops",
    "an exit of a program": "import sys\nsys.exit(3)",
    "a program with an error": "%run program.py",
    "a hook of displays of one's own": "import sys\nshow = sys.displayhook\nsys.displayhook(5)\n"
    "sys.displayhook(None)\nsys.displayhook is show, _",
    "displayhook put back": "import sys\nsys.displayhook = lambda value: print('shown', value)\n6",
    "displayhook after that": "7",
    "all expressions": "get_ipython().ast_node_interactivity = 'all'",
    "shown all": "1\n2",
    "the last again": "get_ipython().ast_node_interactivity = 'last_expr'",
    "signatures of functions of the standard library": "import calendar, codecs, copyreg, csv, "
    "inspect, logging, os, shutil\ndef of(f):\n    try:\n        return str(inspect.signature(f))\n"
    "    except ValueError as error:\n        return str(error)\n"
    "[of(f) for f in (os.umask, copyreg.pickle, logging.addLevelName, shutil.register_archive_format, "
    "csv.register_dialect, calendar.setfirstweekday, codecs.register_error, __import__, print, input, open)]",
    "names of functions of the standard library": "import csv, logging, os, copyreg\n"
    "[(f.__module__, f.__name__, f.__qualname__, f.__doc__) for f in (logging.captureWarnings, copyreg.pickle, "
    "logging.addLevelName)]",
    "the module of a function in C": "import csv, os\n(csv.field_size_limit.__module__, os.umask.__module__)",
    "help of functions of the standard library": "import logging, copyreg\nhelp(logging.addLevelName)\n"
    "help(copyreg.pickle)",
    "a question about one": "import copyreg\ncopyreg.pickle?",
    "the source of one": "import copyreg\ncopyreg.pickle??",
    "an error of one": "import csv\ncsv.register_dialect(1)",
    "a traceback of one": "import logging\nlogging.addLevelName()",
    "pickles": "import pickle, copy\npickle.loads(pickle.dumps({'a': [1, (2,)]})), copy.deepcopy([len, print])",
    "children": "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import sys; sys.x'], "
    "capture_output=True, text=True).stderr)",
    "a process of its own": "import multiprocessing\nwith multiprocessing.get_context('fork').Pool(1) as pool:\n"
    "    print(pool.map(len, ['ab']))",
    "a value without a text": "class A:\n    def __repr__(self):\n        return 1 / 0\nA()",
}


@pytest.fixture(scope="module")
def seen(place: Place, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[str], list[str]]]:
    """The output of each cell, in the stock kernel and in ours; each ran all cells in one folder, in order."""
    folder = tmp_path_factory.mktemp("notebook")
    stock, ours = (all_of(place, name, folder) for name in ("python3", "baton"))
    return {cell: (stock[cell], ours[cell]) for cell in CELLS}


def all_of(place: Place, name: str, folder: Path) -> dict[str, list[str]]:
    kernel = Kernel.start(place, name, folder)
    try:
        return {cell: shown(run(fresh(kernel, folder), *cell_and_answers(CELLS[cell]))) for cell in CELLS}
    finally:
        kernel.shutdown()


def cell_and_answers(described: str | tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    return (described, ()) if isinstance(described, str) else (described[0], described[1:])


def run(kernel: Kernel, code: str, answers: tuple[str, ...]) -> Result:
    cell = kernel.begin(code, answers=answers)
    result = cell.finish()
    assert len(cell.questions) == len(answers), f"{code}: asked {cell.questions}"
    return result


def fresh(kernel: Kernel, folder: Path) -> Kernel:
    """Without anything left from earlier cells."""
    for file, text in HELPERS.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(text)
    kernel.run(FORGET.format([file.partition("/")[0].removesuffix(".py") for file in HELPERS]), silent=True).ok()
    return kernel


def shown(result: Result) -> list[str]:
    """Printed text arrives in pieces, whose boundaries depend on timing."""
    contents: list[dict[str, Any]] = []
    for message in result.published:
        content, before = message["content"], contents[-1] if contents else {}
        if message["msg_type"] == "stream" and before.get("name") == content["name"]:
            contents[-1] = {**before, "text": before["text"] + content["text"]}
        elif message["msg_type"] != "status":
            contents.append(content)
    reply = {key: result.reply.get(key) for key in ("status", "ename", "evalue", "traceback", "payload")}
    return [PLACES.sub("...", str(content)) for content in (*contents, reply)]


ACCEPTED = {
    "a debugger in a cell": (r"skipping \d+ hidden", "Baton's frames around a cell are hidden, and pdb counts them"),
    "the module of a function in C": (r"'(_csv|csv|posix|os)'", "a function that is noted is found by its public name"),
}
"""Allowed differences in these cells, as patterns, with the reasons."""


@pytest.mark.parametrize("cell", CELLS)
def test_a_student_sees_the_same(cell: str, seen: dict[str, tuple[list[str], list[str]]]) -> None:
    stock, ours = seen[cell]
    if cell in ACCEPTED:
        pattern, _ = ACCEPTED[cell]
        assert ours != stock  # otherwise the list is too long
        stock, ours = ([re.sub(pattern, "...", text) for text in texts] for texts in (stock, ours))
    assert ours == stock
