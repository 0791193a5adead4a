"""Random object graphs with sharing, cycles and views; random changes; the result is as if the cell had run at home.

One pair of tables serves many messages of one example, so that numbering, sweeping and patches are exercised
together. Two graphs are equal when a walk from the names finds equal values and the same sharing.
"""

from __future__ import annotations

import random
import types
from typing import Any

import pytest
from harness import Pair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SETUP = """
import random
import numpy as np
from collections import deque, OrderedDict, defaultdict

class Node:
    pass

class Slotted:
    __slots__ = ("left", "right")

def grow(seed, pool):
    '''A few new objects that refer to old ones.'''
    dice = random.Random(seed)
    for _ in range(dice.randrange(1, 8)):
        pick = lambda: dice.choice(pool) if pool and dice.random() < 0.7 else dice.choice([1, 2.5, 'text', None, b'b', True])
        kind = dice.randrange(9)
        if kind == 0: made = [pick() for _ in range(3)]
        elif kind == 1: made = {dice.randrange(5): pick() for _ in range(3)}
        elif kind == 2: made = (pick(), pick())
        elif kind == 3: made = Node(); made.a, made.b = pick(), pick()
        elif kind == 4: made = Slotted(); made.left = pick()
        elif kind == 5: made = np.arange(dice.randrange(1, 2000)) * 1.0
        elif kind == 6: made = deque([pick(), pick()])
        elif kind == 7: made = defaultdict(list, k=pick())
        else:
            arrays = [one for one in pool if type(one) is np.ndarray and one.size]
            made = dice.choice(arrays)[::dice.choice([1, 2, -1])] if arrays else {1, 'a', dice.randrange(9)}
        pool.append(made)

def change(seed, pool):
    '''Random changes in place.'''
    dice = random.Random(seed)
    for _ in range(dice.randrange(1, 8)):
        target, other = dice.choice(pool), dice.choice(pool)
        if type(target) in (list, deque):
            if dice.random() < 0.3 and target: target.pop()
            else: target.append(other)
        elif type(target) in (dict, defaultdict):
            target[dice.randrange(5)] = other
            if dice.random() < 0.3: target.pop(dice.choice(sorted(target, key=str)))
        elif type(target) is Node: setattr(target, dice.choice('abc'), other)
        elif type(target) is Slotted: setattr(target, dice.choice(['left', 'right']), other)
        elif type(target) is np.ndarray and target.size: target[dice.randrange(target.size)] = dice.random()
        elif type(target) is set: target.add(dice.randrange(100))
"""


def picture(pool: list[Any]) -> list[Any]:
    """Each object once, with numbers in the place of references."""
    import numpy as np

    numbers: dict[int, int] = {}
    kept: list[Any] = []
    drawn: list[Any] = []

    def refer(obj: Any) -> Any:
        if type(obj) in (int, float, str, bool, bytes, type(None)):
            return repr(obj)
        if id(obj) not in numbers:
            numbers[id(obj)] = len(kept)
            kept.append(obj)
            drawn.append(None)
            drawn[numbers[id(obj)]] = draw(obj)
        return numbers[id(obj)]

    def draw(obj: Any) -> Any:
        name = type(obj).__name__
        if isinstance(obj, np.ndarray):
            return name, obj.tolist(), obj.strides, refer(obj.base) if isinstance(obj.base, np.ndarray) else None
        if isinstance(obj, dict):
            return name, [(repr(key), refer(value)) for key, value in obj.items()]
        if isinstance(obj, set):
            return name, sorted(map(repr, obj))
        if hasattr(obj, "__dict__"):
            return name, [(key, refer(value)) for key, value in vars(obj).items()]
        if name == "Slotted":
            return name, [(key, refer(getattr(obj, key, None))) for key in ("left", "right")]
        return name, [refer(part) for part in obj]

    for one in pool:
        refer(one)
    return drawn


def local_copy() -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(SETUP + "pool = []\n", namespace)
    return namespace


steps = st.lists(
    st.tuples(
        st.sampled_from(["grow", "change"]), st.sampled_from(["home", "session", "session"]), st.integers(0, 10**6)
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("seed", range(6))
def test_long_histories(seed: int) -> None:
    dice = random.Random(seed)
    run([(dice.choice(["grow", "change"]), dice.choice(["home", "session"]), dice.randrange(10**6)) for _ in range(40)])


@given(steps)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_short_histories(history: list[tuple[str, str, int]]) -> None:
    run(history)


NAMES = ("grow", "change", "Node", "Slotted", "np", "random", "deque", "defaultdict")
steps_in_parts = st.lists(
    st.tuples(st.sampled_from(["home", "session", "session"]), st.lists(st.integers(0, 10**6), min_size=3, max_size=3)),
    min_size=1,
    max_size=6,
)


@given(steps_in_parts)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_names_that_come_in_the_middle_of_a_cell(history: list[tuple[str, list[int]]]) -> None:
    """Three pools that share objects; a cell gets them one after the other, and changes what it has in between."""
    expected = local_copy()
    with Pair() as pair:
        setup = "second = [pool]; third = [pool, second]\nfor one in (pool, second, third, pool, second): grow(1, one)"
        exec(setup, expected)
        pair.local(SETUP + "pool = []\n" + setup)
        for where, (first, second, third) in history:
            parts = (
                (f"change({first}, pool); grow({second}, pool)", ("pool", *NAMES)),
                (f"change({second}, second); change({third}, pool); grow({third}, second)", ("second",)),
                (f"change({third}, third); change({first}, second); change({second}, pool)", ("third",)),
            )
            for code, _ in parts:
                exec(code, expected)
                if where == "home":
                    pair.local(code)
            if where == "session":
                assert pair.remote_in_parts(*parts) == {"error": None}
        assert picture([pair.namespace[name] for name in ("third", "second", "pool")]) == picture(
            [expected[name] for name in ("third", "second", "pool")]
        )


def run(history: list[tuple[str, str, int]]) -> None:
    expected = local_copy()
    with Pair() as pair:
        pair.local(SETUP + "pool = []\n")
        for what, where, seed in [("grow", "home", 1), *history]:
            code = f"{what}({seed}, pool)"
            exec(code, expected)
            if where == "home":
                pair.local(code)
            else:
                held = list(pair.namespace["pool"])
                outcome = pair.remote(
                    code, "grow", "change", "pool", "Node", "Slotted", "np", "random", "deque", "defaultdict"
                )
                assert outcome == {"error": None}
                now = pair.namespace["pool"]
                for before, after in zip(held, now, strict=False):
                    assert before is after
        assert picture(pair.namespace["pool"]) == picture(expected["pool"])


__all__ = ["types"]
