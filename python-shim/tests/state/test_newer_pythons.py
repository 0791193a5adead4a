"""Changes in newer versions of Python: the result is the same in each version."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest
from baton_shim.state.culprits import culprits, reasons_of
from baton_shim.state.kinds.iterators import form_by_parts
from baton_shim.state.kinds.reduced import build
from baton_shim.state.table import Table
from harness import Pair, Refused
from test_in_place import check

since_3_12 = pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")


@pytest.mark.parametrize("looks", ["len(x)", "x[5], [x[k] for k in x], sorted(x), {**x}, x == dict(x)"])
def test_a_large_dict_that_did_not_change_does_not_move(pair: Pair, looks: str) -> None:
    pair.local("x = {n: str(n) for n in range(20_000)}")
    pair.remote(f"{looks}; y = 1", "x")
    for _ in range(3):
        pair.local(looks)
        pair.remote(f"{looks}; y = 1", "x")
        assert pair.up < (200, 1), pair.up
        assert pair.down < (200, 1), pair.down


def test_an_attribute_error_keeps_its_object(pair: Pair) -> None:
    kept = "try:\n    {}.a\nexcept AttributeError as error:\n    {} = error"
    pair.local("x = []\n" + kept.format("x", "here"))
    pair.remote("same = here.obj is x; there = []\n" + kept.format("there", "other"), "x", "here")
    assert pair.namespace["same"]
    assert pair.namespace["here"].obj is pair.namespace["x"]
    assert pair.namespace["other"].obj is pair.namespace["there"]
    assert (pair.namespace["here"].name, pair.namespace["other"].name) == ("a", "a")


ALIASES: dict[str, tuple[str, str]] = {
    "plain": ("type A = list[int]", "(A.__name__, A.__module__, A.__value__)"),
    "recursive": (
        "type A = dict[str, A] | list[A] | None",
        "(A.__value__, A.__value__.__args__[0].__args__[1] is A)",
    ),
    "of one another": ("type B = list[A]\ntype A = list[B] | int", "(A.__value__, B.__value__.__args__[0] is A)"),
    "with parameters": ("type A[T, *Ts, **P] = tuple[T, *Ts]", "(A.__type_params__, A.__value__, A[int, str])"),
    "with a bound": ("type A[T: int] = list[T]", "(A.__type_params__[0].__bound__, A.__value__.__args__)"),
    "in annotations": ("type A = int\ndef f(x: A) -> A: return x", "(f.__annotations__['x'] is A, f(3))"),
}


@since_3_12
@pytest.mark.parametrize("case", ALIASES)
def test_an_alias_of_a_type(pair: Pair, case: str) -> None:
    source, expression = ALIASES[case]
    pair.local(source)
    expected = repr(eval(expression, pair.namespace))
    pair.remote(f"found = repr({expression}); C = A; x = [A]", *(name for name in "ABf" if name in pair.namespace))
    assert pair.namespace["found"] == expected
    assert repr(eval(expression, pair.namespace)) == expected
    assert pair.namespace["C"] is pair.namespace["A"] is pair.namespace["x"][0]


@since_3_12
def test_an_alias_made_there(pair: Pair) -> None:
    pair.local("x = 1")
    pair.remote("type A = dict[str, A] | int\ntype B[T] = list[T]", "x")
    assert pair.namespace["A"].__value__.__args__[0].__args__[1] is pair.namespace["A"]
    assert pair.namespace["B"].__module__ == "__main__"
    assert pair.namespace["B"].__value__[int] == list[int]


@since_3_12
def test_an_alias_that_python_makes_from_source_only(pair: Pair) -> None:
    pair.local("type A[T] = T | list[A[T]]")
    with pytest.raises(Refused, match="it has parameters and contains itself"):
        pair.remote("pass", "A")
    pair.remote("type A[T] = T | list[A[T]]\nx = 1")
    assert pair.namespace["x"] == 1


@since_3_12
def test_parameters_of_functions_and_classes(pair: Pair) -> None:
    pair.local("def f[T](x: T) -> T: return x\nclass C[T]:\n    def g[U](self, x: U) -> T: ...\nc = C[int]()")
    pair.remote("y = f.__type_params__, C.__type_params__, C.g.__type_params__; z = f(3)", "f", "C", "c")
    f, kind = pair.namespace["f"], pair.namespace["C"]
    assert pair.namespace["y"] == (f.__type_params__, kind.__type_params__, kind.g.__type_params__)
    assert list(map(repr, itertools.chain(*pair.namespace["y"]))) == ["T", "T", "U"]
    assert pair.namespace["z"] == 3


def test_annotations_of_what_is_bound_later(pair: Pair) -> None:
    """From Python 3.14 on, they are evaluated when they are read; before that, they are written as strings."""
    later = "Later" if sys.version_info >= (3, 14) else "'Later'"
    pair.local(f"def f(x: {later}) -> int: return 2\nclass C:\n    y: {later}")
    pair.remote("z = f(1); c = C()", "f", "C")
    pair.local("class Later: pass")
    assert pair.namespace["z"] == 2
    import typing

    for holder, name in ((pair.namespace["f"], "x"), (pair.namespace["C"], "y")):
        assert typing.get_type_hints(holder, pair.namespace)[name] is pair.namespace["Later"]
    pair.remote("import typing\nfound = typing.get_type_hints(f, globals())['x'] is Later", "f", "Later")
    assert pair.namespace["found"]


def test_annotations_that_were_changed(pair: Pair) -> None:
    check(pair, "def x(a: int): pass", "x.__annotations__['b'] = str", "(x.__annotations__, x)[0]")
    check(pair, "def x(a: int): pass\nx.__annotations__['b'] = str", "y = x.__annotations__", "(x.__annotations__, y)")


HALF_USED: dict[str, tuple[Any, ...]] = {
    "count": (lambda: itertools.count(5, 2), 1),
    "count down": (lambda: itertools.count(-5, -3), 1),
    "count of floats": (lambda: itertools.count(2.5), 2),
    "count of large numbers": (lambda: itertools.count(2**63 - 2), 3),
    "repeat": (lambda: itertools.repeat([1], 3), 1),
    "repeat for ever": (lambda: itertools.repeat("a"), 1),
    "chain": (lambda: itertools.chain([1, 2], (3,), [4]), 1),
    "chain not begun": (lambda: itertools.chain([1, 2], (3,)), 0),
    "chain at its end": (lambda: itertools.chain([1]), 2),
    "starmap": (lambda: itertools.starmap(pow, [(2, 3), (3, 2)]), 1),
    "filterfalse": (lambda: itertools.filterfalse(None, [0, 1, 0, 0.0]), 1),
    "compress": (lambda: itertools.compress("abc", [1, 0, 1]), 1),
}


def rest_of(iterator: Any) -> list[Any]:
    return list(itertools.islice(iterator, 4))


@pytest.mark.parametrize("case", HALF_USED)
def test_iterators_that_do_not_pickle(case: str) -> None:
    """As in Python 3.14: they are rebuilt from their referents."""
    make, used = HALF_USED[case]
    iterator, alone = make(), make()
    for _ in range(used):
        next(iterator, None), next(alone, None)
    again = build(form_by_parts(iterator))  # type: ignore[arg-type]
    assert type(again) is type(alone)
    assert rest_of(again) == rest_of(alone)


@pytest.mark.parametrize("case", HALF_USED)
def test_half_used_iterators(pair: Pair, case: str) -> None:
    make, used = HALF_USED[case]
    iterator, alone = make(), make()
    for _ in range(used):
        next(iterator, None), next(alone, None)
    pair.namespace["x"] = iterator
    pair.remote("y = next(x, None)", "x")
    assert pair.namespace["y"] == next(alone, None)
    assert type(pair.namespace["x"]) is type(alone)
    assert rest_of(pair.namespace["x"]) == rest_of(alone)


@pytest.mark.skipif(sys.version_info[:2] not in ((3, 12), (3, 13)), reason="only these have a fixed limit in C")
def test_a_nest_that_python_cannot_pickle_is_refused_by_name(pair: Pair) -> None:
    pair.local("nest = []\nfor i in range(6000): nest = [nest]")
    with pytest.raises(RecursionError) as failed:
        pair.remote("len(nest)", "nest")
    found = culprits(lambda: Table(pair.namespace), {"nest": pair.namespace["nest"]}, failed.value)
    assert reasons_of(found) == {"nest": "holds objects that are nested too deeply"}
