"""Names that are taken from libraries and belong to an object of which the library has exactly one."""

from __future__ import annotations

import pytest
from harness import Pair

CASES = {
    "method of the generator": ("from random import randint", "randint.__self__ is __import__('random')._inst"),
    "function of numpy's": (
        "from numpy.random import rand",
        "rand.__self__ is __import__('numpy').random.mtrand._rand",
    ),
    "environment": ("from os import environ", "environ is __import__('os').environ"),
    "parameters": ("from matplotlib import rcParams", "rcParams is __import__('matplotlib').rcParams"),
    "options": ("from pandas import options", "options is __import__('pandas').options"),
    "list of sys": ("from sys import path", "path is __import__('sys').path"),
    "dict of sys": ("from sys import modules", "modules is __import__('sys').modules and 'os' in modules"),
    "mark of a library": (
        "from functools import _initial_missing",
        "_initial_missing is __import__('functools')._initial_missing",
    ),
    "arguments": ("from sys import argv", "argv is __import__('sys').argv"),
    "domain": ("from sympy import QQ", "QQ is __import__('sympy').QQ and QQ(1, 2) * 2 == 1"),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_other_kernels_own(pair: Pair, case: str) -> None:
    take, look = CASES[case]
    name = take.split()[-1]
    pair.local(take)
    before = pair.namespace[name]
    assert pair.remote(f"found = {look}", name) == {"error": None}
    assert pair.namespace["found"]
    assert pair.namespace[name] is before
    assert pair.remote(f"{take} as again", "again") == {"error": None}
    assert eval(look.replace(f"{name}.", "again.", 1).replace(f"{name} is", "again is", 1), pair.namespace)


def test_one_of_the_notebook_travels_with_its_state(pair: Pair) -> None:
    pair.local("import random; mine = random.Random(3); expected = random.Random(3); expected.random()")
    assert pair.remote("first = mine.random(); draw = mine.random", "mine") == {"error": None}
    home = pair.namespace
    assert home["mine"].random() == home["expected"].random()
    assert home["draw"].__self__ is home["mine"]
