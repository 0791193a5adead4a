"""Changes in alternating cells: after each, both kernels have what one kernel alone would have."""

from __future__ import annotations

import pytest
from harness import Pair

NAMED = "from collections import namedtuple\nimport numpy as np\nclass T(namedtuple('B', 'a b')): pass\n"

CASES: dict[str, tuple[str, tuple[str, ...], str]] = {
    # name: (what the notebook creates, the changes, what must be equal after each)
    "a named tuple with attributes": (
        NAMED + "t = T(1, np.zeros(3)); t.tag = []; held = [T([1], 2)]; same = t.b",
        ("t.b[0] += 3; held[0].a.append(5)", "t.tag.append(held[0]); held[0].a.append(6)", "t.b.fill(7)"),
        "t.b.tolist(), held, t.tag, t.b is same, t.tag[:1] == held[:1]",
    ),
    "a tuple of a class": (
        "class T(tuple): pass\nx = T(([1], {})); y = {x[0][0]: x}",
        ("x[0].append(2); x[1]['a'] = 1", "x.a = x[0]; y[1][0].append(x[1])", "x.a.append(3)"),
        "tuple(x), y[1] is x, getattr(x, 'a', 0)",
    ),
    "a typed named tuple of a class": (
        "from typing import NamedTuple\nclass E(NamedTuple):\n  a: list\nclass T(E): pass\nx = T([])",
        ("x.a.append(1)", "x.a.append(2); x.n = 1", "x.a.clear()"),
        "x, getattr(x, 'n', 0)",
    ),
    "a frozen set of a class": (
        "class P: n = 0\nclass F(frozenset): pass\np = P(); x = F([p])",
        ("next(iter(x)).n += 1", "x.a = [p]; p.n += 1", "p.n += 1; x.a.append(1)"),
        "p.n, next(iter(x)) is p, len(getattr(x, 'a', ()))",
    ),
    "a named tuple with attributes that holds what is replaced": (
        NAMED + "w = enumerate('abcdef'); t = T(w, np.zeros(2)); u = (t, [t])",
        ("next(w)", "t.b[0] += next(w)[0]", "next(t.a)"),
        "t.a is w, u[0] is t, u[1][0] is t, t.b.tolist(), w.__reduce__()[1][1]",
    ),
    "equal ranges": (
        "x = range(0, 3, 2); y = [x, slice(0, 1)]; z = {'a': slice(None, [0])}; stop = z['a'].stop",
        (
            "x = range(0, 4, 2); y[1] = slice(0, True); z['a'] = slice(None, stop)",
            "x = y[0]; y[0] = range(0); stop.append(5)",
            "y[0] = range(1, 1); y[1] = slice(0, 1.0); z['a'] = slice(None, [0, 5])",
        ),
        "x, y, z, z['a'].stop is stop",
    ),
    "methods of an enumeration whose names begin with underscores": (
        "import enum\nclass C(enum.Enum):\n  A = [1]\n  B = 2\nclass D(enum.IntFlag):\n  R = 1\n  W = 2\nx = C.A",
        (
            "C.__str__ = lambda self: 'text'; C._helper = lambda self: [self]; D.__len__ = lambda self: 5",
            "C._missing_ = classmethod(lambda cls, value: C.B); C.__doc__ = 'a'; x.value.append(2)",
            "del C.__str__, D.__len__; C._helper = 4; D.__invert__ = lambda self: 'inverted'",
        ),
        "str(x), x._helper() == [x] if callable(C._helper) else C._helper, repr(C), len(list(C)), "
        "C(7) is C.B if '_missing_' in vars(C) else 0, C.__doc__, C.A.value, hasattr(D.R, '__len__') and len(D.R), "
        "~D.R, D(3) is D.R | D.W, list(D), sorted(name for name in vars(C) if name[:2] != '__')",
    ),
    "classes of properties": (
        "class shared(property):\n"
        "  def __get__(self, one, kind=None): return self.fget(kind)\n"
        "class named(property):\n"
        "  __slots__ = ('note',)\n"
        "class counted(staticmethod): n = 0\n"
        "class by_class(classmethod): pass\n"
        "class A:\n"
        "  held = []\n"
        "  @shared\n"
        "  def n(kind):\n    'Counts.'\n    return len(kind.held)\n"
        "  m = named(lambda self: self.held, doc='All.')\n"
        "  s = counted(lambda: [A.held])\n"
        "  c = by_class(lambda kind, more=[]: (kind.__name__, more))\n"
        "a = A(); p = vars(A)['m']",
        (
            "A.held.append(a.n); p.note = [A.n]; vars(A)['s'].n = 5",
            "A.m = p.setter(lambda self, one: self.held.append(one)); a.m = 'b'; A.c()[1].append(1)",
            "A.held.append(A.n); vars(A)['n'].tag = A.held; p = vars(A)['n']; A.k = shared(lambda kind: kind.n)",
        ),
        "A.n, a.n, a.m, a.s()[0] is A.held, a.c(), vars(A)['m'].__doc__, getattr(p, 'tag', 0) is A.held, "
        "getattr(p, 'note', 0), vars(A)['n'].__doc__, vars(A)['s'].n, type(p).__name__, getattr(A, 'k', None)",
    ),
}


@pytest.mark.parametrize("session_first", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_alternating_cells(processes: Pair, case: str, session_first: bool) -> None:
    processes.start_anew()
    check_alternating(processes, *CASES[case], session_first)


def check_alternating(pair: Pair, make: str, changes: tuple[str, ...], look: str, session_first: bool) -> None:
    expected: dict[str, object] = {"__name__": "__main__"}
    exec(make, expected)
    pair.local(make)
    pair.remote("pass", *names_of(pair))
    for number, change in enumerate(changes):
        exec(change, expected)
        if (number % 2 == 0) == session_first:
            assert pair.remote(change, *names_of(pair)) == {"error": None}
        else:
            pair.local(change)
        wanted = repr(eval(look, expected))
        assert repr(eval(look, pair.namespace)) == wanted
        assert pair.remote(f"seen = repr(({look}))", *names_of(pair)) == {"error": None}
        assert pair.namespace.pop("seen") == wanted
    pair.remote("pass", *names_of(pair))
    pair.remote("pass", *names_of(pair))
    assert pair.down[0] < 400 and pair.down[1] == 0, f"an idle cell sent {pair.down} bytes home"


def names_of(pair: Pair) -> list[str]:
    return [name for name in pair.namespace if not name.startswith("__")]
