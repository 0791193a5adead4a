"""Functions that numba compiles."""

from __future__ import annotations

import os

import pytest
from baton_shim.state import Table
from harness import Pair, Wire

pytest.importorskip("numba")

FUNCTIONS = """
import numba
factor = 3
@numba.njit
def scaled(a): return a * factor
@numba.vectorize
def of_elements(a): return scaled(a) + 1
@numba.vectorize(["float64(float64)"])
def of_floats(a): return scaled(a) + 2
of_elements(1)
held = [of_elements]
"""
LOOK = "of_elements(1), of_floats(1), list(of_elements.types), list(of_floats.types), held[0] is of_elements"
NAMES = ("factor", "scaled", "of_elements", "of_floats", "held")
EXPECTED = (4, 5.0, ["l->l"], ["d->d"], True)


def test_a_compiled_function_that_calls_another_one(pair: Pair) -> None:
    pair.local(FUNCTIONS)
    assert pair.remote(f"found = {LOOK}", *NAMES) == {"error": None}
    assert pair.namespace["found"] == EXPECTED
    pair.remote("of_elements(1.5)", *NAMES)
    pair.local("found = list(of_elements.types), of_elements(1.5)")
    assert pair.namespace["found"] == (["l->l", "d->d"], 5.5)


def test_a_saved_state_contains_it() -> None:
    saved: dict[str, object] = {"__name__": "__main__"}
    exec(FUNCTIONS, saved)
    table = Table(saved, for_later=True)
    delta, descriptor = Wire().carry(table.snapshot(NAMES), os.getpid())
    namespace: dict[str, object] = {"__name__": "__main__"}
    try:
        Table(namespace, home=True).apply(delta, descriptor)
    finally:
        os.close(descriptor)
    exec(f"found = {LOOK}", namespace)
    assert namespace["found"] == EXPECTED
