"""Cells without `%%gpu` against a stock ipykernel beside ours: what a student sees is the same, to the last character.

Places in memory, and numbers of processes and cells' temporary files, are the only things that may differ.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from end_to_end import Kernel, Place
from end_to_end.results import Result

PLACES = re.compile(r"0x[0-9a-f]+|ipykernel_\d+/\d+")
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
    "the places where modules are sought": "import sys\n[type(f).__name__ if not isinstance(f, type) else f.__name__ "
    "for f in sys.meta_path], len(sys.path_hooks)",
    "the hook of displays": "import sys\ntype(sys.displayhook).__name__, sys.excepthook.__name__",
    "the debugger": "import pdb\ntry:\n    import fails\nexcept Exception:\n    import sys\n"
    "    frames, tb = [], sys.exc_info()[2]\n    while tb:\n        frames.append(tb.tb_frame.f_code.co_name)\n"
    "        tb = tb.tb_next\nframes",
    "what asyncio runs": "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 7\nawait f()",
    "an error of asyncio": "import asyncio\nasync def f():\n    raise OSError(2, 'no')\nawait f()",
    "%timeit": "get_ipython().run_line_magic('timeit', '-n 1 -r 1 -o -q 1').loops",
    "an exit of a program": "import sys\nsys.exit(3)",
    "a program with an error": "%run program.py",
    "a value without a text": "class A:\n    def __repr__(self):\n        return 1 / 0\nA()",
}


@pytest.fixture(scope="module")
def seen(place: Place, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[str], list[str]]]:
    """Of each cell, in the stock kernel and in ours, which ran all of them in one folder, one after the other."""
    folder = tmp_path_factory.mktemp("notebook")
    stock, ours = (all_of(place, name, folder) for name in ("python3", "baton"))
    return {cell: (stock[cell], ours[cell]) for cell in CELLS}


def all_of(place: Place, name: str, folder: Path) -> dict[str, list[str]]:
    kernel = Kernel.start(place, name, folder)
    try:
        return {cell: shown(fresh(kernel, folder).run(code)) for cell, code in CELLS.items()}
    finally:
        kernel.shutdown()


def fresh(kernel: Kernel, folder: Path) -> Kernel:
    """Nothing is left of the cells before."""
    for file, text in HELPERS.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(text)
    kernel.run(FORGET.format([file.partition("/")[0].removesuffix(".py") for file in HELPERS]), silent=True).ok()
    return kernel


def shown(result: Result) -> list[str]:
    contents = [message["content"] for message in result.published if message["msg_type"] != "status"]
    reply = {key: result.reply.get(key) for key in ("status", "ename", "evalue", "traceback", "payload")}
    return [PLACES.sub("...", str(content)) for content in (*contents, reply)]


@pytest.mark.parametrize("cell", CELLS)
def test_a_student_sees_the_same(cell: str, seen: dict[str, tuple[list[str], list[str]]]) -> None:
    stock, ours = seen[cell]
    assert ours == stock
