"""An object that the notebook cannot rebuild stays in the session, and everything else arrives."""

from __future__ import annotations

import pytest
from baton_shim.state import StandIn
from baton_shim.state.refusal import StandInError
from harness import Pair

ONLY_THERE = """
import sys, types
there = types.ModuleType("only_there")
exec(compile('''
class Thing:
    def __init__(self, number): self.number = number
class Numbers(list): pass
class Pairs(dict): pass
class Slotted:
    __slots__ = ("a",)
def work(): return 1
def make(number): return Thing(number)
thing = Thing(1)
''', "only_there.py", "exec"), vars(there))
sys.modules["only_there"] = there
del there, types
"""
ABSENT = "cannot be imported here (ModuleNotFoundError: No module named 'only_there') and lives on the GPU machine"

# Ways in which an object fails where `here` is true.
FAILS = """
class Made:
    def __new__(cls, *given):
        if {here}: raise ValueError("not here")
        return object.__new__(cls)
    def __reduce__(self): return Made, (1,)
class Filled:
    def __init__(self): self.own = [1]
    def __setstate__(self, state):
        vars(self).update(state)
        if {here}: raise ValueError("not here")
class Mapped(dict):
    def __setitem__(self, key, value):
        if {here}: raise ValueError("not here")
        dict.__setitem__(self, key, value)
    def __reduce__(self): return Mapped, (), None, None, iter(self.items())
def given(made):
    if {here}: raise ValueError("not here")
    return made
class ByFunction:
    def __reduce__(self): return given, (self.__class__,)
"""


def text(value: object) -> str:
    assert type(value) is StandIn
    return repr(value)


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("x = sys.modules['only_there'].thing", f"'Thing' of the module 'only_there' {ABSENT}"),
        ("x = sys.modules['only_there'].Thing", f"'Thing' of the module 'only_there' {ABSENT}"),
        ("x = sys.modules['only_there'].work", f"'work' of the module 'only_there' {ABSENT}"),
        ("x = sys.modules['only_there'].Numbers([1, 2, 3])", f"'Numbers' of the module 'only_there' {ABSENT}"),
        ("x = sys.modules['only_there'].Numbers([1])", f"'Numbers' of the module 'only_there' {ABSENT}"),
        ("x = sys.modules['only_there'].Pairs(a=1, b=2)", f"'Pairs' of the module 'only_there' {ABSENT}"),
        ("x = sys.modules['only_there'].Slotted(); x.a = 5", f"'Slotted' of the module 'only_there' {ABSENT}"),
    ],
)
def test_what_a_module_has_that_is_only_there_stays_there(pair: Pair, code: str, what: str) -> None:
    pair.local("kept = [1]; numbers = {'a': kept}")
    pair.remote(f"{ONLY_THERE}{code}\nkept.append(2); around = [x, kept, x]; y = 5", "kept", "numbers")
    names = pair.namespace
    assert text(names["x"]) == f"<{what}>"
    assert pair.table.not_rebuilt == [what]
    assert names["numbers"] == {"a": [1, 2]}
    assert names["around"][1] is names["kept"]
    assert names["around"][0] is names["around"][2] is names["x"]
    with pytest.raises(StandInError, match="only_there"):
        names["x"]()
    # In the session it is the original again, and later messages carry its changes.
    pair.remote("same = x is around[0]; kind = type(x).__name__; kept.append(3); del sys.modules['only_there']", "x")
    assert (names["same"], names["kept"], pair.table.not_rebuilt) == (True, [1, 2, 3], [])


@pytest.mark.parametrize("made", ["Made()", "Filled()", "Mapped(a=1)", "ByFunction()"])
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "held by others"])
def test_a_class_that_fails_in_the_notebook_costs_only_its_objects(pair: Pair, made: str, inside: bool) -> None:
    pair.local("kept = [1]")
    classes = FAILS.format(here="not __import__('sys').modules.get('a_session')")
    around = "x = [x, kept]; x[0].back = x" if inside and made != "Made()" else "x = [x, kept]"
    pair.remote(f"import sys; sys.modules['a_session'] = sys\n{classes}\nx = {made}\n{around}\nkept.append(2)", "kept")
    names = pair.namespace
    stayed, kept = names["x"]
    assert kept is names["kept"]
    assert kept == [1, 2]
    assert "cannot be rebuilt here (ValueError: not here)" in text(stayed)
    assert pair.table.not_rebuilt == [text(stayed)[1:-1]]
    pair.remote("there = type(x[0]).__name__; del sys.modules['a_session']", "x")
    assert names["there"] == made.partition("(")[0]


def test_memory_that_only_such_an_object_holds_does_not_disturb_later_messages(pair: Pair) -> None:
    pair.local("import numpy as np; mine = np.zeros(50_000)")
    code = "thing = sys.modules['only_there'].thing; thing.big = np.ones(100_000); thing.mine = mine; mine[3] = 1"
    pair.remote(ONLY_THERE + code, "mine", "np")
    assert pair.namespace["mine"].sum() == 1
    for number in range(3):
        pair.local(f"mine[7] = {number}")
        pair.remote(
            "thing.big += 1; thing.mine[3] += 1; seen = mine[7], thing.big[0], thing.mine is mine", "thing", "mine"
        )
        assert pair.namespace["seen"] == (number, 2 + number, True)
        assert pair.namespace["mine"][3] == 2 + number
    pair.remote("del sys.modules['only_there'], thing; big = np.arange(100_000.0)", deleted=("thing",))
    assert pair.namespace["big"][-1] == 99_999


def test_an_object_that_can_no_longer_be_pickled_stays(pair: Pair) -> None:
    pair.local(
        "class File:\n    def __init__(self): self.open = True\n    def __reduce__(self):\n"
        "        if not self.open: raise ValueError('closed')\n        return File, ()\n"
        "x = File(); y = 0"
    )
    assert pair.remote("x.open = False; y = 1", "x", "y", "File") == {"error": None}
    assert pair.namespace["y"] == 1
    assert repr(pair.namespace["x"]).startswith("<'x' is a 'File' object that cannot be pickled (closed) and lives on")
    assert pair.remote("y = x.open", "x", "y") == {"error": None}
    assert pair.namespace["y"] is False
