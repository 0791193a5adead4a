"""Objects and variables of modules that are not installed: each kernel has imported its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Pair

SOURCE = """
import ctypes
from argparse import Namespace
class Options:
    def __init__(self): self.rate = 1
class Locked:
    def __init__(self): self.numbers = (n for n in range(3))
options, names, table, chosen, optional = Options(), ["a"], {"k": 1}, {1}, None
alias = names
locked = Locked()
handle = ctypes.c_void_p()
def rate(options=options): return options.rate
def lists(names=names, table=table, chosen=chosen): return names, table, chosen
def current(): return options.rate, names, optional
def choose(value):
    global optional
    optional = value
def replace():
    global options
    options = Options()
def held(): return locked.numbers
def pointer(): return handle
def where(): return __file__
"""


@pytest.fixture
def course(pair: Pair, tmp_path: Path) -> Iterator[Pair]:
    (tmp_path / "own_course.py").write_text(SOURCE)
    here = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    pair.local(f"{here}\nimport own_course\nfrom own_course import *")
    pair.remote(here)
    yield pair
    pair.local("sys.path.pop(0), sys.modules.pop('own_course')")


def test_the_other_kernels_module_has_the_object_in_every_place(course: Pair) -> None:
    course.local("options.rate = 2; names.append('b'); table['l'] = 2; chosen.add(2)")
    course.remote(
        "found = rate(), lists(), names is lists()[0]", "options", "names", "table", "chosen", "rate", "lists"
    )
    assert course.namespace["found"] == (2, (["a", "b"], {"k": 1, "l": 2}, {1, 2}), True)
    assert course.namespace["found"][1][0] is course.namespace["names"]
    course.remote("options.rate = 3; lists()[1]['m'] = 3", "options", "lists")
    course.local("found = rate(), table['m'], names is own_course.alias")
    assert course.namespace["found"] == (3, 3, True)


def test_a_place_that_holds_another_object_now(course: Pair) -> None:
    course.local("first = options; replace(); options = own_course.options; options.rate = 5")
    course.remote("found = current()[0], first.rate", "current", "first")
    assert course.namespace["found"] == (5, 1)
    course.local("own_course.options = Namespace(rate=6); own_course.alias = ['c']")
    course.remote("found = current()[0], own_course.alias, own_course.names", "current", "own_course")
    assert course.namespace["found"] == (6, ["c"], ["a"])
    assert course.namespace["found"][1] is not course.namespace["own_course"].names


def test_a_variable_is_rebound_and_deleted_in_both_kernels(course: Pair) -> None:
    course.remote("choose([1])", "choose", "current")
    assert course.namespace["own_course"].optional == [1]
    course.local("del own_course.optional")
    course.remote("import own_course\nfound = hasattr(own_course, 'optional'); choose(2)", "choose")
    assert (course.namespace["found"], course.namespace["own_course"].optional) == (False, 2)


def test_a_value_that_holds_what_cannot_travel_stays(course: Pair) -> None:
    course.local("next(held())")
    course.remote("found = next(held())", "held")
    assert course.table.take_staying() == [
        "own_course.locked stays as it is in each kernel: it holds something that is a generator"
    ]
    course.local("later = next(held())")
    assert (course.namespace["found"], course.namespace["later"]) == (0, 1)
    assert course.remote("found = pointer() is __import__('own_course').handle", "pointer") == {"error": None}
    assert course.namespace["found"]
    assert type(course.namespace["own_course"].handle).__name__ == "c_void_p"
    assert course.table.take_staying() == []


def test_an_undone_message_leaves_the_module_as_it_was(course: Pair) -> None:
    course.local("before = own_course.options")
    course.remote("choose(7); options.rate = 8; names.append('z')", "choose", "options", "names")
    assert course.namespace["own_course"].optional == 7
    course.table.roll_back([course.table.last_undo])  # type: ignore[list-item]
    course.local("found = own_course.optional, before.rate, own_course.names")
    assert course.namespace["found"] == (None, 1, ["a"])


def test_only_variables_that_code_names_travel(course: Pair) -> None:
    course.remote("__import__('own_course').__file__ = 'there'; file = where()", "where")
    assert course.namespace["file"] == "there" != course.namespace["own_course"].__file__
    course.local("own_course.names.append('unsent'); own_course.options.rate = 4")
    course.remote("import own_course\nfound = own_course.rate(), choose(1), own_course.names", "choose")
    assert course.namespace["found"][1:] == (None, ["a"])
