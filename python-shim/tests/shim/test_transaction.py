"""The surroundings of a cell are one transaction with its variables: all of it takes effect, or nothing does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Baton

SETUP = """
import logging, matplotlib
matplotlib.use('agg')
import matplotlib.pyplot as plt
from IPython.core.magic import register_line_magic
class Lines(logging.Handler):
    def emit(self, record): pass
log = logging.getLogger('course')
def add(number):
    register_line_magic(f'greet{number}')(lambda line: number)
    log.addHandler(Lines(number))
    plt.figure(number)
def remove(number):
    del get_ipython().magics_manager.magics['line'][f'greet{number}']
    for one in log.handlers[:]: log.removeHandler(one) if one.level == number else None
    plt.close(number)
unsendable = (n for n in ())
"""
LOOK = (
    "[name for name in get_ipython().magics_manager.magics['line'] if name.startswith('greet')], "
    "[one.level for one in log.handlers], plt.get_fignums()"
)


def held(*numbers: int) -> str:
    return str(([f"greet{number}" for number in numbers], list(numbers), list(numbers)))


def test_what_was_deleted_before_a_refused_cell_stays_deleted(baton: Baton) -> None:
    baton.run(SETUP)
    baton.run("add(1)")
    assert baton.run(f"%%gpu\n{LOOK}").result == held(1)
    baton.run("remove(1)")
    assert baton.run("%%gpu\nlist(unsendable)").error.startswith("StateRefused")
    assert baton.run(f"%%gpu\n{LOOK}").result == held()
    assert baton.value(LOOK) == held()


def test_what_lost_cells_hung_is_taken_back(baton_away: Baton) -> None:
    baton = baton_away
    baton.run(SETUP + "import numpy as np; x = np.zeros(1000)")
    baton.run("add(1)")
    baton.follow.clear()
    baton.run("%%gpu\nx += 1; add(2)")
    baton.run("%%gpu\nx += 1; add(3); remove(1)")
    baton.lose_session()
    assert "are lost" in baton.run("pass").text("stderr")
    assert baton.value(LOOK) == held(1)
    assert baton.run(f"%%gpu\n{LOOK}").result == held(1)


# The change by a cell, and an expression that shows it.
CHANGES = [
    ("mine = decimal.Context(prec=4); decimal.setcontext(mine)", "decimal.getcontext().prec"),
    (
        "np.set_printoptions(precision=2, formatter={'int': lambda value: 'n'})",
        "str(np.array([1 / 3])), str(np.ones(1, int))",
    ),
    ("calls = np.seterrcall(lambda *arguments: None)", "np.geterrcall()"),
    ("np.random.seed(5); random.seed(5)", "np.random.get_state()[1].sum(), random.getstate()"),
    ("os.environ['COURSE'] = 'lost'; gone = os.environ.pop('TERM_OF_COURSE')", "sorted(os.environ.items())"),
    (
        "sys.path.append('/lost'); warnings.simplefilter('error'); sys.setrecursionlimit(1234)",
        "sys.path, warnings.filters",
    ),
    ("log.setLevel('DEBUG'); log.addFilter(lambda record: True)", "log.level, log.filters"),
    ("previous = os.umask(0o27); csv.register_dialect('lost', delimiter=';')", "csv.list_dialects()"),
    ("csv.register_dialect('kept', delimiter=';')", "csv.get_dialect('kept').delimiter"),
    ("previous = signal.signal(signal.SIGUSR1, lambda number, frame: None)", "signal.getsignal(signal.SIGUSR1)"),
    ("gc.callbacks.append(lambda phase, info: None); gc.disable()", "gc.callbacks, gc.isenabled()"),
    ("tarfile.ENCODING = 'lost'; reprlib.aRepr.maxlist = 2", "tarfile.ENCODING, reprlib.aRepr.maxlist"),
    ("json.encoder.ESCAPE_DCT['e'] = 'E'", "json.encoder.ESCAPE_DCT.get('e')"),
    (
        "@pkgutil.iter_importer_modules.register(int)\ndef modules(finder, prefix=''): return ['lost']",
        "[kind.__name__ for kind in pkgutil.iter_importer_modules.registry]",
    ),
    ("%xmode Plain", "get_ipython().InteractiveTB.mode"),
    ("get_ipython().set_custom_exc((ValueError,), lambda *arguments: None)", "get_ipython().custom_exceptions"),
    (
        "get_ipython().events.register('pre_run_cell', lambda info: None)",
        "get_ipython().events.callbacks['pre_run_cell']",
    ),
    (
        "pathlib.Path('helper.py').write_text('value = 2  # changed'); _ = importlib.reload(helper)",
        "helper.value, helper.other()",
    ),
]


def test_a_lost_cell_takes_back_whatever_it_did(baton_away: Baton) -> None:
    baton = baton_away
    (baton.folder / "helper.py").write_text("value = 1\ndef other(): return value")
    modules = "csv, decimal, gc, helper, importlib, json, logging, os, pathlib, pkgutil, random, reprlib, signal, sys, tarfile"
    baton.run(f"import {modules}, warnings, numpy as np\nx, log = np.zeros(1000), logging.getLogger('course')")
    baton.run("os.environ['TERM_OF_COURSE'] = 'one'; csv.register_dialect('kept', delimiter=',')")
    look = "\n".join(f"print([{shows}])" for _, shows in CHANGES)
    before = baton.run(look).text().splitlines()
    assert baton.run("%%gpu\npass").reply["status"] == "ok"
    baton.follow.clear()
    cell = baton.run("%%gpu\nx += 1\n" + "\n".join(change for change, _ in CHANGES))
    assert cell.reply["status"] == "ok", cell.traceback
    baton.lose_session()
    assert "are lost" in baton.run("pass").text("stderr")
    after = baton.run(look)
    assert after.reply["status"] == "ok", after.traceback
    seen = zip(CHANGES, after.text().splitlines(), before, strict=True)
    assert [(change, now, then) for (change, _), now, then in seen if now != then] == []
    assert baton.value("open('/proc/self/status').read().split('Umask:')[1].split()[0]") != "'0027'"


def test_a_loss_that_an_idle_kernel_hears_of_takes_back_context_variables(baton_away: Baton) -> None:
    baton = baton_away
    baton.run("import decimal, numpy as np; x = np.zeros(1000)")
    baton.follow.clear()
    baton.run("%%gpu\nx += 1; decimal.setcontext(decimal.Context(prec=4)); np.seterr(divide='raise')")
    baton.lose_session()
    assert baton.told_of_loss.wait(100)
    for _ in range(2):  # after the first one, the kernel's loop has handled earlier messages
        baton.notebook.client.kernel_info(reply=True, timeout=100)
    cell = baton.run("print(decimal.getcontext().prec, np.geterr()['divide'])")
    assert "are lost" in cell.text("stderr")
    assert cell.text() == "28 warn\n"


# ---- any sequence of changes and failures, compared with a model ----

FAULT = """
from baton_shim.surroundings.handlers import Handlers

def fail_next(kind):
    real = Handlers.apply
    def apply(self, hung, undo):
        Handlers.apply = real
        real(self, hung, undo)
        raise kind('injected')
    Handlers.apply = apply
"""
"""A separate module, because anything that a cell puts into a class would be sent with the next cell."""

CHANGE = """
import fault, os, tarfile, time
import numpy as np
x, done, home = np.zeros(1000), [], os.getpid()
os.environ['COURSE'] = tarfile.ENCODING = '0'
def change(number):
    magics = get_ipython().magics_manager.magics['line']
    (remove if f'greet{number}' in magics else add)(number)
    done.append(number)
    os.environ['COURSE'] = str(number)
    tarfile.ENCODING = str(number)
class Unfit:
    def __init__(self, error): self.error = error
    def __setstate__(self, state):
        if os.getpid() == home: raise state('unfit')
        self.error = state
    def __getstate__(self): return self.error
"""
EVERYTHING = (
    "(sorted(int(name[5:]) for name in get_ipython().magics_manager.magics['line'] if name.startswith('greet')), "
    "sorted(one.level for one in log.handlers), sorted(plt.get_fignums()), done, os.environ['COURSE'], tarfile.ENCODING)"
)


class Model(NamedTuple):
    numbers: frozenset[int] = frozenset()
    handlers: tuple[int, ...] = ()
    done: tuple[int, ...] = ()

    def change(self, number: int) -> Model:
        """Like `change`, but decides by the existing magics whether to add or remove."""
        numbers = self.numbers ^ {number}
        others = tuple(one for one in self.handlers if one != number)
        handlers = (*self.handlers, number) if number in numbers else others
        return Model(numbers, handlers, (*self.done, number))

    def text(self) -> str:
        last = str(self.done[-1]) if self.done else "0"
        return str((sorted(self.numbers), sorted(self.handlers), sorted(self.numbers), [*self.done], last, last))


def here(baton: Baton) -> str:
    return baton.run(f"print({EVERYTHING})").text().strip()


def there(baton: Baton) -> str:
    return baton.run(f"%%gpu\nprint({EVERYTHING})").text().strip()


def change_here(baton: Baton, number: int, model: Model) -> Model:
    assert baton.run(f"change({number})").reply["status"] == "ok"
    return model.change(number)


def change_there(baton: Baton, number: int, model: Model) -> Model:
    cell = baton.run(f"%%gpu\nchange({number})")
    assert cell.reply["status"] == "ok", cell.traceback
    return model.change(number)


def change_there_and_be_interrupted(baton: Baton, number: int, model: Model) -> Model:
    code = f"%%gpu\nchange({number}); print('running', flush=True); time.sleep(60)"
    cell = baton.run(code, interrupt_when=lambda: "running" in baton.remote_text())
    assert cell.error.startswith("KeyboardInterrupt")
    return model.change(number)


def be_refused(baton: Baton, number: int, model: Model) -> Model:
    assert baton.run("%%gpu\nlist(unsendable)").error.startswith("StateRefused")
    return model


def be_given_up(baton: Baton, number: int, model: Model) -> Model:
    baton.hold.set()
    calls, cancels = len(baton.calls), getattr(baton, "held_cancels", 0)
    pressed: list[int] = []

    def press_twice() -> bool:
        if not pressed and len(baton.calls) == calls + 1:
            pressed.append(1)
            baton.interrupt()
        return getattr(baton, "held_cancels", 0) == cancels + 1

    assert baton.run(f"%%gpu\nchange({number})", interrupt_when=press_twice).error.startswith("KeyboardInterrupt")
    baton.hold.clear()
    return model


def be_unfit_for_the_notebook(baton: Baton, number: int, model: Model) -> Model:
    cell = baton.run(f"%%gpu\nchange({number}); unfit = Unfit(SystemExit)")
    assert "could not be returned (SystemExit: unfit)" in cell.error
    return model


def leave_one_object_there(baton: Baton, number: int, model: Model) -> Model:
    cell = baton.run(f"%%gpu\nchange({number}); unfit = Unfit(ValueError)")
    assert "warning: a 'Unfit' object cannot be rebuilt here (ValueError: unfit)" in cell.text("stderr")
    return model.change(number)


def be_stopped_while_applying(baton: Baton, number: int, model: Model) -> Model:
    baton.run("fault.fail_next(KeyboardInterrupt)")
    assert "could not be returned (KeyboardInterrupt" in baton.run(f"%%gpu\nchange({number})").error
    return model


def fail_in_one_part(baton: Baton, number: int, model: Model) -> Model:
    """The failure of a part affects only that part."""
    baton.run("fault.fail_next(ValueError)")
    cell = baton.run(f"%%gpu\nchange({number})")
    assert "warning: The handlers of loggers could not be updated (ValueError: injected)" in cell.text("stderr")
    return model.change(number)._replace(handlers=model.handlers)


def lose_the_session_in_the_cell(baton: Baton, number: int, model: Model) -> Model:
    cell = baton.run(f"%%gpu\nchange({number}); os.kill(os.getpid(), 9)")
    assert "The session died" in cell.error
    return model


def lose_the_session_after_the_cell(baton: Baton, number: int, model: Model) -> Model:
    baton.follow.clear()
    assert baton.run(f"%%gpu\nchange({number}); x += 1").reply["status"] == "ok"
    baton.lose_session()
    assert "are lost" in baton.run("pass").text("stderr")
    baton.follow.set()
    return model


STEPS = (
    *(change_here, change_there, change_there_and_be_interrupted, be_refused, be_given_up, be_unfit_for_the_notebook),
    leave_one_object_there,
    *(be_stopped_while_applying, fail_in_one_part, lose_the_session_in_the_cell, lose_the_session_after_the_cell),
)


@pytest.mark.timeout(900)
def test_after_any_failure_all_is_as_if_the_cell_had_not_been(baton_away: Baton) -> None:
    (baton_away.folder / "fault.py").write_text(FAULT)
    assert baton_away.run(SETUP + CHANGE).reply["status"] == "ok"
    model = Model()

    @settings(
        max_examples=max(1, int(os.environ.get("BATON_TEST_EXAMPLES", "200")) // 40),
        derandomize="BATON_TEST_EXAMPLES" not in os.environ,
        phases=[Phase.generate],  # each example continues from the one before
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 3)), min_size=5, max_size=8))
    def check(steps: list[tuple[Callable[[Baton, int, Model], Model], int]]) -> None:
        nonlocal model
        for step, number in steps:
            model = step(baton_away, number, model)
            assert here(baton_away) == model.text(), step.__name__
        assert there(baton_away) == model.text(), [(step.__name__, number) for step, number in steps]
        assert here(baton_away) == model.text()

    check()


def test_each_failure_after_a_change_here(baton_away: Baton) -> None:
    """The next cell is sent what the failed one would have been sent."""
    baton = baton_away
    (baton.folder / "fault.py").write_text(FAULT)
    baton.run(SETUP + CHANGE)
    model = Model()
    for step in STEPS:
        model = change_here(baton, 1, model)
        model = step(baton, 2, model)
        assert here(baton) == model.text(), step.__name__
        assert there(baton) == model.text(), step.__name__
        assert here(baton) == model.text(), step.__name__
