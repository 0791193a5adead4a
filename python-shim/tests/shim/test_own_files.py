"""Functions and objects of the student's own `.py` files."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Baton

SCRIPT = """
class Net:
    def __init__(self): self.w = [0]
net = Net()
losses = []
count = 0
report = None
def train():
    global count
    count += 1
    net.w[0] += 1
    losses.append(net.w[0])
    return report and report()
def predict(x): return net.w[0] * x, count
"""


def run_script(baton: Baton) -> None:
    baton.run(f"open('setup.py', 'w').write({SCRIPT!r})")
    assert baton.run("%run setup.py").reply["status"] == "ok"


def test_functions_of_a_script_train_the_notebooks_model(baton: Baton) -> None:
    run_script(baton)
    baton.run("%%gpu\ntrain()")
    baton.run("%%gpu\ntrain(); train()")
    assert baton.value("net.w, losses, predict(2)") == "([3], [1, 2, 3], (6, 3))"
    baton.run("net.w[0] = 7")
    assert baton.run("%%gpu\npredict(1)").result == "(7, 3)"
    assert baton.run("%%gpu\nm = Net(); isinstance(net, Net), type(m) is type(net)").result == "(True, True)"


def test_a_script_that_runs_again(baton: Baton) -> None:
    run_script(baton)
    baton.run("%%gpu\ntrain(); first = train")
    assert baton.run("%run setup.py").reply["status"] == "ok"
    baton.run("%%gpu\ntrain(); first()")
    assert baton.value("net.w, losses, predict(2)") == "([2], [1, 2], (4, 2))"


def test_a_script_that_the_session_runs(baton: Baton) -> None:
    run_script(baton)
    assert baton.run("%%gpu\n%run setup.py\ntrain()").reply["status"] == "ok"
    baton.run("train()")
    baton.run("%%gpu\ntrain()")
    assert baton.value("net.w, losses, predict(2)") == "([3], [1, 2, 3], (6, 3))"


def test_names_that_a_script_uses_through_its_variables(baton: Baton) -> None:
    run_script(baton)
    baton.run("seen = [5]\ndef show(): return seen\ntrain.__globals__['report'] = show; del show")
    assert baton.run("%%gpu\ntrain()").result == "[5]"


CONFIG = """
from argparse import Namespace
from types import SimpleNamespace
import numpy as np

class Mark:
    pass

class Recorder:
    def __init__(self): self.numbers, self.lines = (number for number in range(9)), []

class Net:
    scale = 1
    def __init__(self): self.w = [0]
    def run(self): return self.w[0] * self.scale * RATE

MISSING = Mark()
options = Namespace(lr=0.1, layers=[1])
config = {"lr": 0.1}
simple = SimpleNamespace(lr=0.1)
net, losses, handlers, RATE, steps = Net(), [], {}, 1, 0
rng = np.random.default_rng(0)
reader = (number for number in range(9))
recorder = Recorder()

def lr(): return options.lr, config["lr"], simple.lr, RATE
def is_missing(x=MISSING): return x is MISSING
def use(options=options): return options.layers
def train():
    global steps
    steps += 1
    net.w[0] += 1
    losses.append(net.w[0])
    return net.run()
def register(function):
    handlers[function.__name__] = function
    return function
def call(name, *arguments): return handlers[name](*arguments)
def draw(): return int(rng.integers(1000))
def read(): return next(reader)
def record(line):
    recorder.lines.append(line)
    return next(recorder.numbers)
"""


def write_module(baton: Baton, imports: str) -> None:
    baton.run(f"open('course.py', 'w').write({CONFIG!r})")
    cell = baton.run(imports)
    assert cell.reply["status"] == "ok", cell.traceback


def test_functions_of_a_module_see_the_notebooks_changes(baton: Baton) -> None:
    write_module(baton, "import course\nfrom course import options, config, simple, lr, use, losses")
    baton.run("options.lr = config['lr'] = simple.lr = 0.5; options.layers.append(2)")
    assert baton.run("%%gpu\nlr(), use()").result == "((0.5, 0.5, 0.5, 1), [1, 2])"
    baton.run("course.options.lr = course.config['lr'] = course.simple.lr = 0.7; course.RATE = 2")
    assert baton.run("%%gpu\ncourse.lr(), options is course.options").result == "((0.7, 0.7, 0.7, 2), True)"
    baton.run("%%gpu\noptions.lr = 0.9; course.config['lr'] = 0.8; use().append(3); losses.append(1)")
    assert baton.value("lr(), use(), course.losses is losses") == "((0.9, 0.8, 0.7, 2), [1, 2, 3], True)"
    assert baton.value("losses, config is course.config, simple is course.simple") == "([1], True, True)"


def test_a_modules_model_is_trained_in_both_kernels(baton: Baton) -> None:
    write_module(baton, "from course import *")
    baton.run("%%gpu\ntrain(); train()")
    assert baton.value("train(), net.w, losses") == "(3, [3], [1, 2, 3])"
    baton.run("Net.scale = 10; kept = net")
    assert baton.run("%%gpu\ntrain(), kept is net, len(losses)").result == "(40, True, 4)"
    assert baton.value("__import__('course').steps, kept.run(), losses") == "(4, 40, [1, 2, 3, 4])"


def test_a_mark_of_a_module(baton: Baton) -> None:
    write_module(baton, "from course import MISSING, is_missing\nx = [MISSING]")
    assert (
        baton.run("%%gpu\ny = MISSING\nis_missing(), is_missing(x[0]), is_missing(3)").result == "(True, True, False)"
    )
    assert baton.value("is_missing(), is_missing(y), y is x[0]") == "(True, True, True)"


def test_functions_that_a_module_keeps(baton: Baton) -> None:
    write_module(baton, "import course\nfactor = 2\n@course.register\ndef twice(v): return v * factor")
    assert baton.run("%%gpu\ncourse.call('twice', 4)").result == "8"
    baton.run("%%gpu\n@course.register\ndef thrice(v): return v * 3")
    assert baton.value("course.call('thrice', 2), sorted(course.handlers)") == "(6, ['thrice', 'twice'])"


def test_a_generator_of_a_module_is_one_stream(baton: Baton) -> None:
    write_module(baton, "from course import draw, rng\nimport numpy\nplain = numpy.random.default_rng(0)")
    drawn = [baton.value("draw()"), *(baton.run("%%gpu\ndraw()").result for _ in range(2)), baton.value("draw()")]
    assert str(drawn).replace("'", "") == baton.value("[int(plain.integers(1000)) for _ in range(4)]")
    assert baton.value("rng is __import__('course').rng") == "True"


def test_what_cannot_travel_stays_each_kernels_own(baton: Baton) -> None:
    write_module(baton, "from course import read, record")
    assert baton.value("read(), record('a')") == "(0, 0)"
    assert baton.run("%%gpu\nread(), read(), record('b')").result == "(0, 1, 0)"
    assert baton.value("read(), record('c'), __import__('course').recorder.lines") == "(1, 1, ['a', 'c'])"


def test_a_module_that_the_session_imports_first(baton: Baton) -> None:
    baton.run(f"open('course.py', 'w').write({CONFIG!r})")
    baton.run("%%gpu\nimport course\ncourse.train(); options = course.options; options.lr = 3")
    assert baton.value("course.net.w, course.steps, course.lr()[0], options is course.options") == "([1], 1, 3, True)"
    baton.run("from importlib import reload; reload(course)")
    assert baton.run("%%gpu\ncourse.train(), course.steps, course.lr()[0]").result == "(1, 1, 0.1)"


def test_a_failed_cell_still_returns_them(baton: Baton) -> None:
    write_module(baton, "import course")
    baton.run("%%gpu\ncourse.train(); 1 / 0")
    assert baton.value("course.net.w, course.steps") == "([1], 1)"
    assert baton.run("%gpu_undo").reply["status"] == "ok"
    assert baton.value("course.net.w, course.losses, course.steps") == "([0], [], 0)"


def test_blocks_and_calls_of_a_module_share_its_variables(baton: Baton) -> None:
    source = """
from baton import gpu
total, held = 0, [0]
def block():
    global total
    with gpu:
        total += 1
        held[0] += 1
    return total, held
@gpu
def call(number):
    held[0] += number
    return total
"""
    baton.run(f"open('steps.py', 'w').write({source!r})")
    baton.run("from steps import block, call, held")
    assert baton.value("block()") == "(1, [1])"
    baton.run("held[0] = 5")
    assert baton.value("block(), call(4), held, held is __import__('steps').held") == "((2, [10]), 2, [10], True)"


def test_a_cell_or_function_that_imports_a_module_itself(baton: Baton) -> None:
    write_module(
        baton, "import course as kept\nkept.train()\ndef step():\n    import course\n    return course.train()"
    )
    assert baton.run("%%gpu\nfrom course import net, train\ntrain(), net.w").result == "(2, [2])"
    assert baton.value("kept.net.w, net is kept.net, kept.train()") == "([3], True, 3)"
    assert baton.run("%%gpu\nstep()").result == "4"
    assert baton.value("step(), kept.steps") == "(5, 5)"


def test_a_function_that_imports_a_module_brings_it(baton: Baton) -> None:
    write_module(
        baton, "import course as kept\nkept.train()\ndef step():\n    import course\n    return course.train()"
    )
    assert baton.run("%%gpu\nstep()").result == "2"
    assert baton.value("kept.steps, kept.losses") == "(2, [1, 2])"


PACKAGE = {
    "config.py": "rate = [1]",  # not the package's
    "course/__init__.py": "",
    "course/config.py": "rate = [1]",
    "course/part/__init__.py": "",
    "course/part/data.py": "seen = [1]",
    "course/part/steps.py": (
        "def siblings():\n    from . import data\n    from .data import seen\n    return data.seen is seen, seen\n"
        "def above():\n    from ..config import rate\n    return rate\n"
    ),
}


def test_a_function_that_imports_parts_of_its_package_brings_them(baton: Baton) -> None:
    baton.run("import os\nos.makedirs('course/part')")
    for file, source in PACKAGE.items():
        baton.run(f"open({file!r}, 'w').write({source!r})")
    baton.run("import config, course.config, course.part.data\nfrom course.part.steps import siblings, above")
    baton.run("config.rate[0] = 2; course.config.rate[0] = 3; course.part.data.seen[0] = 4")
    assert baton.run("%%gpu\nsiblings(), above()").result == "((True, [4]), [3])"
    baton.run("%%gpu\nabove().append(5)")
    assert baton.value("course.config.rate, config.rate") == "([3, 5], [2])"


SEES = "def sees(name):\n    import __main__\n    return name in vars(__main__)\n"


def test_a_cell_that_uses_a_module_is_given_nothing_else(baton: Baton) -> None:
    baton.run(f"open('course.py', 'w').write({SEES!r})")
    baton.run("import course; unrelated = [1]\ndef evaluates(): return eval('unrelated')")
    assert baton.run("%%gpu\ncourse.sees('course'), course.sees('unrelated')").result == "(True, False)"


@pytest.mark.parametrize(
    ("in_background", "code"), [("rows.append(2)", "course.lr()"), ("course.train()", "rows.append(2)")]
)
def test_a_module_and_a_background_cell_do_not_wait_for_each_other(baton: Baton, in_background: str, code: str) -> None:
    write_module(baton, "import course\nrows = [1]")
    end = threading.Event()
    baton.before_finish = end.wait
    assert baton.run(f"%%gpu --background job\n{in_background}").reply["status"] == "ok"
    cell = baton.run(code, interrupt_when=lambda: any(kind == "stream" for kind, _ in baton.seen))
    end.set()
    assert cell.reply["status"] == "ok", cell.traceback
    assert baton.run("%%gpu\nrows").reply["status"] == "ok"


def test_a_module_that_the_session_found_in_another_way_changes_nothing_here(baton: Baton) -> None:
    write_module(baton, "import course as kept\nkept.train()")
    assert (
        baton.run("%%gpu\nother = __import__('course').net; train = __import__('course').train; train()").result == "1"
    )
    assert baton.value("kept.net.w, kept.steps, other.w, other is kept.net") == "([1], 1, [1], False)"
