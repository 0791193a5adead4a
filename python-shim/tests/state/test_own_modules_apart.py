"""Modules that are not installed, where the two kernels differ: in what they can import, hold, or have changed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from baton_shim.state import StandIn
from harness import Pair

Write = Callable[..., None]

ONLY_IN_NOTEBOOK = """
import os, sys
if "pytest" not in sys.modules and "ready" not in os.environ:
    raise ImportError("no tkinter")
"""
ONLY_IN_SESSION = """
import sys
if "pytest" in sys.modules:
    raise OSError("no driver")
"""
TRAINER = """
class Trainer:
    def __init__(self): self.weights, self.batches = [0], (n for n in range(9))
trainer = Trainer()
log = (n for n in range(9))
def train():
    trainer.weights[0] += next(trainer.batches, 0) + 1
    return trainer.weights, log
"""


@pytest.fixture
def write(pair: Pair, tmp_path: Path) -> Iterator[Write]:
    """Writes modules that both kernels can import."""
    names: list[str] = []

    def write(**sources: str) -> None:
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
            names.append(name)

    here = f"import os, sys; sys.path.insert(0, {str(tmp_path)!r})"
    pair.local(here)
    pair.remote(here)
    yield write
    sys.path.remove(str(tmp_path))
    for name in names:
        sys.modules.pop(name, None)


def test_code_may_import_a_module_that_only_the_notebook_can_import(pair: Pair, write: Write) -> None:
    write(
        own_gui=f"{ONLY_IN_NOTEBOOK}class Window: pass\nclass Keyed:\n    __slots__ = 'a'\n"
        "shown, windows = [], [Window(), Keyed()]\nwindow = main = Window()\n"
        "def show(window=window): shown.append(1)",
        own_helper="try:\n    import own_gui\nexcept ImportError:\n    own_gui = None\ndef has_gui(): return own_gui",
    )
    pair.local("import own_gui, own_helper; del own_gui")
    pair.local("def step(show=False):\n    if show:\n        from own_gui import show; show()\n    return 1")
    pair.remote("found = step(), own_helper.has_gui()", "step", "own_helper")
    assert pair.namespace["found"] == (1, None)
    assert type(pair.remote("step(True)", "step")["error"]) is ImportError
    pair.local("step(True); found = own_helper.has_gui().shown")
    assert pair.namespace["found"] == [1]


def test_if_a_module_can_be_imported_later_its_variables_are_the_notebooks(pair: Pair, write: Write) -> None:
    write(own_gui=f"{ONLY_IN_NOTEBOOK}shown = 0\ndef show(): global shown; shown += 1")
    pair.local("import own_gui\ndef step(show=False):\n    import own_gui\n    return own_gui.show()")
    pair.local("show = own_gui.show; del own_gui; show()")
    assert type(pair.remote("step()", "step")["error"]) is ImportError
    assert pair.remote("os.environ['ready'] = '1'; step()", "step") == {"error": None}
    assert sys.modules["own_gui"].shown == 1
    pair.local("show()")
    pair.remote("step(); found = sys.modules['own_gui'].shown", "step")
    assert (pair.namespace["found"], sys.modules["own_gui"].shown) == (3, 3)


def test_a_module_that_only_the_session_can_import(pair: Pair, write: Write) -> None:
    write(own_cuda=f"{ONLY_IN_SESSION}limit = 2\ndef work(): return limit")
    pair.remote("import own_cuda; from own_cuda import work; x = work()")
    names = pair.namespace
    assert names["x"] == 2
    assert type(names["own_cuda"]) is type(names["work"]) is StandIn
    assert repr(names["own_cuda"]) == "<the module 'own_cuda' was imported on the GPU machine, but here: no driver>"
    why = "cannot be imported here (OSError: no driver) and lives on the GPU machine"
    assert pair.table.not_rebuilt == [f"'work' of the module 'own_cuda' {why}"]
    assert pair.remote("own_cuda.limit = 3; x = work()", "own_cuda", "work") == {"error": None}
    assert names["x"] == 3


def test_a_variable_stays_with_a_warning_while_it_holds_what_cannot_travel(pair: Pair, write: Write) -> None:
    write(own_course=TRAINER)
    pair.local("from own_course import train, trainer")
    for _ in range(2):
        pair.remote("weights = train()[0][:]", "train")
    assert pair.namespace["weights"] == [3]
    assert pair.namespace["trainer"].weights == [0]
    reason = "it holds something that is a generator"
    assert pair.table.take_staying() == [f"own_course.trainer stays as it is in each kernel: {reason}"]
    pair.remote("weights = train()[0][:]", "train", "trainer")
    assert pair.namespace["weights"] == [6]
    pair.remote("train(); sys.modules['own_course'].trainer.batches = None", "train")
    assert sys.modules["own_course"].trainer.weights == [10]
    assert pair.table.take_staying() == []
    pair.remote("sys.modules['own_course'].trainer.weights.append(1)", "train")
    assert sys.modules["own_course"].trainer.weights == [10, 1]


def test_a_warning_about_a_variable_of_a_module_that_only_the_session_has_loaded(pair: Pair, write: Write) -> None:
    write(own_course=TRAINER)
    pair.remote("from own_course import train; train()")
    reason = "it holds something that is a generator"
    assert pair.table.take_staying() == [f"own_course.trainer stays as it is in each kernel: {reason}"]


def test_an_object_of_two_modules_executes_only_the_one_that_the_cell_uses(pair: Pair, write: Write) -> None:
    write(
        own_course="options = {'rate': 1}\ndef rate(options=options): return options['rate']",
        own_plots="from own_course import options\ncolours = ['red']",
    )
    pair.local(
        "import own_plots, own_course; rate = own_course.rate; options = own_course.options; options['rate'] = 2"
    )
    pair.remote("found = rate(), 'own_plots' in sys.modules", "rate", "options")
    assert pair.namespace["found"] == (2, False)


def test_an_object_of_two_modules_of_which_one_cannot_be_imported(pair: Pair, write: Write) -> None:
    write(
        own_course="options = {'rate': 1}\ndef rate(options=options): return options['rate']",
        own_plots=f"{ONLY_IN_NOTEBOOK}from own_course import options",
    )
    pair.local("import own_plots, own_course; options = own_course.options; options['rate'] = 2")
    pair.remote("import own_course; found = own_course.rate()", "options")
    assert pair.namespace["found"] == 2


def test_the_notebooks_object_keeps_its_contents_if_a_module_is_new_to_it(pair: Pair, write: Write) -> None:
    write(own_course="options = {'rate': 1}", own_plots="from own_course import options\ndef plot(): return options")
    pair.local("import own_course; own_course.options['rate'] = 2")
    pair.remote("from own_plots import plot; rate = plot()['rate']")
    assert (pair.namespace["rate"], sys.modules["own_course"].options) == (1, {"rate": 2})


def test_keys_have_their_contents_before_a_table_hashes_them(pair: Pair, write: Write) -> None:
    write(
        own_keys="from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Key: n: int\n"
        "table = {}\nkey = Key(1)\ntable[key] = 'old'\ndef look(): return table, key"
    )
    pair.local("import own_keys; own_keys.key = own_keys.Key(5); own_keys.table = {own_keys.key: 'new'}")
    pair.local("look, Key = own_keys.look, own_keys.Key; del own_keys")
    pair.remote("found = look()[0][Key(5)]", "look", "Key")
    assert pair.namespace["found"] == "new"


def test_a_variable_that_the_session_creates_in_the_notebooks_module(pair: Pair, write: Write) -> None:
    write(own_config="seed = 0", own_helper="import own_config\ndef setup(): own_config.device = 'cuda'")
    pair.local(
        "import own_helper, own_config; own_config.seed = 1; setup = own_helper.setup; del own_helper, own_config"
    )
    pair.remote("setup()", "setup")
    config = sys.modules["own_config"]
    assert (config.device, config.seed) == ("cuda", 1)


def test_an_object_that_cannot_be_examined_has_no_place(pair: Pair, write: Write) -> None:
    write(
        own_lazy="class Lazy:\n    @property\n    def __class__(self): raise RuntimeError('not yet')\n"
        "class Meta(type):\n    def __eq__(self, other): raise RuntimeError('never')\n    __hash__ = type.__hash__\n"
        "class Odd(metaclass=Meta): pass\n"
        "lazy, odd, names = Lazy(), Odd(), ['a']\ndef lists(names=names): return names"
    )
    pair.local("from own_lazy import lists, names; names.append('b')")
    pair.remote("found = lists()", "lists", "names")
    assert pair.namespace["found"] == ["a", "b"]


@pytest.mark.parametrize("count", [200, 20_000])
def test_a_large_container_is_the_modules_own_object(pair: Pair, write: Write, count: int) -> None:
    write(own_words="words = {'<unknown>': -1}\ndef encode(word, words=words): return words[word]")
    pair.local(f"from own_words import encode, words\nfor n in range({count}): words[str(n)] = n")
    pair.remote("found = encode('5')", "encode", "words")
    assert pair.namespace["found"] == 5
    pair.lose_session()
    pair.remote("del words['5']; kept = words", "encode", "words")
    pair.table.roll_back([pair.table.last_undo])  # type: ignore[list-item]
    assert len(pair.namespace["words"]) == count + 1


def test_a_module_that_is_imported_anew(pair: Pair, write: Write) -> None:
    write(own_names="names = ['a']\ndef lists(names=names): return names")
    pair.local("from own_names import lists, names")
    pair.remote("pass", "sys")
    pair.local("del sys.modules['own_names']\nfrom own_names import lists, names; names.append('b')")
    pair.remote("found = lists()", "lists", "names")
    assert pair.namespace["found"] == ["a", "b"]
