"""Random object graphs with sharing, cycles and views; random changes; the result is as if the cell had run locally.

One pair of tables handles the many messages of one example, so that numbering, sweeping and patches are exercised
together. Some messages are never received. Two graphs are equal if a walk from the names finds equal values and the
same sharing.
"""

from __future__ import annotations

import gc
import random
import types
import weakref
from typing import Any

import pytest
from drawing import Drawing
from harness import Pair
from hypothesis import given
from hypothesis import strategies as st

SETUP = """
import random
import types
import weakref
import numpy as np
from collections import deque, OrderedDict, defaultdict

class Node:
    shared = []

class Slotted:
    __slots__ = ("left", "right")

class Row(list):
    pass

def counter(start, held):
    def add(by=1):
        nonlocal start
        start += by
        return start, held
    def look():
        return start
    return add, look

def grow(seed, pool):
    '''A few new objects that refer to old ones.'''
    dice = random.Random(seed)
    for _ in range(dice.randrange(1, 8)):
        old = lambda *kinds: dice.choice([one for one in pool if type(one) in kinds] or [None])
        pick = lambda: dice.choice(pool) if pool and dice.random() < 0.7 else dice.choice([1, 2.5, 'text', None, b'b', True])
        kind = dice.randrange(18)
        if kind == 0: made = [pick() for _ in range(3)]
        elif kind == 1: made = {dice.randrange(5): pick() for _ in range(3)}
        elif kind == 2: made = (pick(), pick())
        elif kind == 3: made = Node(); made.a, made.b = pick(), pick()
        elif kind == 4: made = Slotted(); made.left = pick()
        elif kind == 5: made = np.arange(dice.randrange(1, 2000)) * 1.0
        elif kind == 6: made = deque([pick(), pick()], dice.choice([None, 4]))
        elif kind == 7: made = defaultdict(list, k=pick())
        elif kind == 8: made, looks = counter(dice.randrange(9), pick()); pool.append(looks)
        elif kind == 9: made = Row([pick()]); made.note = pick()
        elif kind == 10: made = bytearray(b'abc'); pool.append([made])
        elif kind == 11: made = OrderedDict(x=pick(), y=pick())
        elif kind == 12: made = weakref.ref(seen) if (seen := old(Node)) else [pick()]
        elif kind == 13: made = dice.choice([dict.keys, dict.values, dict.items])(seen) if (seen := old(dict)) is not None else {}
        elif kind == 14: made = iter(seen) if (seen := old(list)) is not None else []
        elif kind == 15: made = types.MethodType(seen, (pick(),)) if (seen := old(types.FunctionType)) else types.SimpleNamespace(a=pick())
        elif kind == 16: made = []; made.append((made, pick()))
        else:
            arrays = [one for one in pool if type(one) is np.ndarray and one.size]
            made = dice.choice(arrays)[::dice.choice([1, 2, -1])] if arrays else {1, 'a', dice.randrange(9)}
        pool.append(made)

def change(seed, pool):
    '''Random changes in place.'''
    dice = random.Random(seed)
    for _ in range(dice.randrange(1, 8)):
        target, other = dice.choice(pool), dice.choice(pool)
        if type(target) in (list, deque, Row):
            if dice.random() < 0.3 and target: target.pop()
            else: target.append(other)
        elif type(target) in (dict, defaultdict, OrderedDict):
            target[dice.randrange(5)] = other
            if dice.random() < 0.3: target.pop(dice.choice(sorted(target, key=str)))
            if type(target) is OrderedDict and target: target.move_to_end(min(target, key=str))
        elif type(target) in (Node, types.SimpleNamespace): setattr(target, dice.choice('abc'), other)
        elif type(target) is Slotted: setattr(target, dice.choice(['left', 'right']), other)
        elif type(target) is np.ndarray and target.size: target[dice.randrange(target.size)] = dice.random()
        elif type(target) is set: target.add(dice.randrange(100))
        elif type(target) is bytearray: target += b'x' * dice.randrange(3)
        elif type(target) is weakref.ref:
            if target() is not None: target().c = other
        elif type(target) is types.FunctionType:
            target.note = other
            if target.__name__ == 'add':
                target(dice.randrange(5))
                target.__defaults__ = (dice.randrange(9),)
        elif type(target) is type(iter([])): next(target, None)
        else: Node.shared.append(other)

def forget(seed, pool):
    '''Some objects are held by others only, or by nobody.'''
    dice = random.Random(seed)
    for _ in range(dice.randrange(1, 4)):
        if len(pool) > 1: pool.pop(dice.randrange(len(pool)))
    if dice.random() < 0.3: Node.shared = []
"""
NAMES = "grow change forget counter pool Node Slotted Row np random types weakref deque OrderedDict defaultdict".split()


def picture(pool: list[Any], shared: list[Any]) -> list[Any]:
    """Each object once, and its number in place of each further reference."""
    import numpy as np

    weak: list[tuple[int, Any]] = []

    def draw(obj: Any) -> Any:
        name = type(obj).__name__
        attributes = [(key, refer(value)) for key, value in getattr(obj, "__dict__", {}).items()]
        if isinstance(obj, np.ndarray):
            return name, obj.tolist(), obj.strides, refer(obj.base) if isinstance(obj.base, np.ndarray) else None
        if isinstance(obj, dict):
            return name, [(repr(key), refer(value)) for key, value in obj.items()]
        if isinstance(obj, set):
            return name, sorted(map(repr, obj))
        if isinstance(obj, (bytearray, range)):
            return name, repr(obj)
        if isinstance(obj, types.FunctionType):
            cells = [(refer(cell), refer(cell.cell_contents)) for cell in obj.__closure__ or ()]
            return name, obj.__name__, cells, obj.__defaults__, attributes
        if isinstance(obj, types.MethodType):
            return name, refer(obj.__self__), refer(obj.__func__)
        if isinstance(obj, weakref.ref):
            weak.append((numbers[id(obj)], obj))
            return name
        if name.startswith("dict_"):
            return name, refer(next(part for part in gc.get_referents(obj) if isinstance(part, dict)))
        if name == "list_iterator":
            _, (over,), *place = obj.__reduce__()
            return name, refer(over) if place else None, place
        if name == "cell":
            return name
        if name == "Slotted":
            return name, [(key, refer(getattr(obj, key, None))) for key in ("left", "right")]
        if name in ("Node", "SimpleNamespace"):
            return name, attributes
        return name, getattr(obj, "maxlen", None), [refer(part) for part in obj], attributes

    drawing = Drawing(draw)
    refer, numbers, drawn = drawing.refer, drawing.numbers, drawing.drawn
    for one in (*pool, shared):
        refer(one)
    for number, reference in weak:  # an object with only weak references may live a while longer
        drawn[number] = "weakref", numbers.get(id(reference()))
    return drawn


def local_copy() -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(SETUP + "pool = []\n", namespace)
    return namespace


steps = st.lists(
    st.tuples(
        st.sampled_from(["grow", "grow", "change", "change", "forget"]),
        st.sampled_from(["home", "unsent", "session", "session"]),
        st.integers(0, 10**6),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("seed", range(6))
def test_long_histories(processes: Pair, seed: int) -> None:
    dice = random.Random(seed)
    whats = ["grow", "grow", "change", "change", "forget"]
    run(
        processes,
        [
            (dice.choice(whats), dice.choice(["home", "unsent", "session", "session"]), dice.randrange(10**6))
            for _ in range(40)
        ],
    )


@given(steps)
def test_short_histories(processes: Pair, history: list[tuple[str, str, int]]) -> None:
    run(processes, history)


steps_in_parts = st.lists(
    st.tuples(st.sampled_from(["home", "session", "session"]), st.lists(st.integers(0, 10**6), min_size=3, max_size=3)),
    min_size=1,
    max_size=6,
)


@given(steps_in_parts)
def test_names_that_come_in_the_middle_of_a_cell(processes: Pair, history: list[tuple[str, list[int]]]) -> None:
    """Three pools that share objects; a cell gets them one after the other, and changes objects in between."""
    pair, expected = processes, local_copy()
    pair.start_anew()
    setup = "second = [pool]; third = [pool, second]\nfor one in (pool, second, third, pool, second): grow(1, one)"
    exec(setup, expected)
    pair.local(SETUP + "pool = []\n" + setup)
    for where, (first, second, third) in history:
        parts = (
            (f"change({first}, pool); grow({second}, pool)", NAMES),
            (f"change({second}, second); change({third}, pool); grow({third}, second)", ("second",)),
            (f"change({third}, third); change({first}, second); change({second}, pool)", ("third",)),
        )
        for code, _ in parts:
            exec(code, expected)
            if where == "home":
                pair.local(code)
        if where == "session":
            assert pair.remote_in_parts(*parts) == {"error": None}
    pools = ("third", "second", "pool")
    assert drawn(pair.namespace, pools) == drawn(expected, pools)


def run(pair: Pair, history: list[tuple[str, str, int]]) -> None:
    expected = local_copy()
    pair.start_anew()
    pair.local(SETUP + "pool = []\n")
    for what, where, seed in [("grow", "home", 1), *history]:
        code = f"{what}({seed}, pool)"
        exec(code, expected)
        if where != "session":
            pair.local(code)
            if where == "unsent":
                pair.unsent(*NAMES)
        else:
            held = list(pair.namespace["pool"])
            assert pair.remote(code, *NAMES) == {"error": None}
            if what != "forget":
                assert not [
                    old for old, now in zip(held, pair.namespace["pool"], strict=False) if is_replaced(old, now)
                ]
    assert drawn(pair.namespace) == drawn(expected)


def is_replaced(before: Any, now: Any) -> bool:
    """An iterator that the cell exhausted cannot be exhausted here without an irreversible change.

    A tuple cannot be made to hold the new one.
    """
    held = before if type(before) is tuple else (before,)
    return now is not before and type(iter([])) not in map(type, held)


def drawn(namespace: dict[str, Any], pools: tuple[str, ...] = ("pool",)) -> list[Any]:
    return picture([one for pool in pools for one in (namespace[pool], *namespace[pool])], namespace["Node"].shared)
