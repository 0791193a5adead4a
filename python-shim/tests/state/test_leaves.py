"""Large containers of plain values: each arrives unchanged, and is sent only if it was written to."""

from __future__ import annotations

import itertools
import struct
import sys
from typing import Any

import pytest
from baton_shim.state.kinds import leaves
from baton_shim.state.writes import stamp
from harness import Pair
from hypothesis import given
from hypothesis import strategies as st

MANY = leaves.LEAF_ELEMENTS
IDLE_BYTES = 300

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**80), 2**80),
    st.sampled_from([0, -1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 256, 257]),
    st.floats(),
    st.sampled_from([-0.0, 0.0, struct.unpack("<d", b"\1\0\0\0\0\0\xf8\xff")[0]]),
    st.complex_numbers(),
    st.text(st.characters(exclude_categories=())),  # including lone surrogates
    st.sampled_from(["", "\0", "\n", "text" * 100]),
    st.binary(),
    st.builds(range, st.integers(0, 9)),
    st.just(...),
)
PLAIN = st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)


def described(value: Any) -> Any:
    """Exact to the last bit, with types."""
    if type(value) in (tuple, list) or hasattr(value, "tolist"):
        return type(value), [described(part) for part in value]
    if type(value) is dict:
        return dict, [(described(key), described(part)) for key, part in value.items()]
    if type(value) is set:
        return set, sorted(repr(described(part)) for part in value)
    if type(value) is float:
        return struct.pack("<d", value)
    if type(value) is complex:
        return struct.pack("<dd", value.real, value.imag)
    return type(value), value


@given(elements=st.lists(PLAIN, min_size=1, max_size=12), kind=st.sampled_from(["list", "dict", "set", "array"]))
def test_elements_arrive_to_the_last_bit(pair: Pair, elements: list[Any], kind: str) -> None:
    many = (elements * MANY)[:MANY]
    forms = {
        "list": lambda: many,
        "dict": lambda: {(number, key): value for number, (key, value) in enumerate(itertools.pairwise(many))},
        "set": lambda: set(enumerate(many)),
        "array": lambda: many,
    }
    pair.namespace["x"] = forms[kind]()
    if kind == "array":
        pair.local("import numpy as np\nx = np.fromiter(x, object, len(x))")
    expected = described(pair.namespace["x"])
    assert pair.remote("y = x.copy()", "x") == {"error": None}
    assert described(pair.namespace["y"]) == expected == described(pair.namespace["x"])


CHANGES = {
    "dict": [
        "x[5] = 'new'",
        "x[6] = 'new again'; x['added'] = 1",
        "x.pop(7, None); x[7] = 7",
        "x[8] = x.pop(8, 8)",
        "x.popitem()",
        "first = dict(list(x.items())[:-10]); x.clear(); x.update(first)",
        "x |= {9: 1.0, 10: True, 11: 1}",
        "x.update(zip(range(20), range(20)))",
        "x[12] = [x, 'inner']",
        "x[12] = {'inner': 1}; x[13] = x[12]",
        "x[12] = x[13] = 'plain'",
        "type(x.get(12)) is list and x[12].append(1)",
        "type(x.get(12)) is dict and x[12].update(more=2)",
        "x.update(zip(range(100_000, 100_000 + 2000), range(2000)))",
    ],
    "list": [
        "x[5] = 'new'",
        "x.append(1); x.append(True); x.append(1.0)",
        "x.reverse()",
        "x[6], x[7] = x[7], x[6]",
        "del x[::100]",
        "x += list(range(1000))",
        "x[8] = [x, 'inner']",
        "x[8] = {'inner': 1}; x[9] = x[8]",
        "x[8] = x[9] = 'plain'",
        "type(x[8]) is list and x[8].append(1)",
        "type(x[8]) is dict and x[8].update(more=2)",
        "x[:] = [str(n) for n in range(20_000)]",
    ],
    "set": [
        "x.add('new')",
        "x.discard(5); x.discard('new')",
        "x.add(5); x.add((1, 'pair'))",
        "x ^= set(range(0, 30_000, 7))",
        "x.add(frozenset(['inner']))",
        "x.discard(frozenset(['inner']))",
        "x.clear(); x.update(map(str, range(15_000)))",
    ],
}
LOOKS = ["len(x)", "list(x)", "x.copy()", "x == x", "repr(x)", "x.__contains__(5)", "sum(1 for one in x)"]
MADE = {"dict": "{n: str(n) for n in range(12_000)}", "list": "list(range(12_000))", "set": "set(range(12_000))"}


@pytest.mark.parametrize("stamps", [True, False], ids=["stamps", "no stamps"])
@pytest.mark.parametrize("kind", MADE)
@given(data=st.data())
def test_what_was_written_to_moves_and_nothing_else(pair: Pair, kind: str, stamps: bool, data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.tuples(st.booleans(), st.sampled_from(CHANGES[kind] + LOOKS)), max_size=8))
    expected: dict[str, Any] = {}
    exec(f"x = {MADE[kind]}; keep = [x]", expected)
    shown = "repr(x) if type(x) is not set else sorted(map(repr, x))"
    with pytest.MonkeyPatch.context() as patch:
        if not stamps:  # as in a Python without stamps
            patch.setattr(leaves, "stamp", lambda table: None)
        pair.local(f"x = {MADE[kind]}; keep = [x]")
        for at_home, code in steps:
            exec(code, expected)
            if at_home:
                pair.local(code)
            assert pair.remote("pass" if at_home else code, "x") == {"error": None}
            assert pair.namespace["keep"][0] is pair.namespace["x"]
            assert eval(shown, pair.namespace) == pair.ask(shown) == eval(shown, expected)
        # A message may also tell what is out of reach now, which is looked for from time to time.
        assert any(is_idle(pair) for _ in range(4))


def is_idle(pair: Pair) -> bool:
    """Whether the next cell, which changes nothing, moves almost nothing."""
    pair.remote("pass", "x")
    return pair.up[0] < IDLE_BYTES and pair.down[0] < IDLE_BYTES


def test_what_a_large_list_let_go_of_is_brought_up_to_date(pair: Pair) -> None:
    pair.local("inner = [1]; x = [inner, *range(20_000)]; other = {'inner': inner}")
    pair.remote("pass", "x", "other")
    pair.remote("x[0].append(2); del x[0]", "x")
    assert pair.namespace["inner"] == [1, 2] and len(pair.namespace["x"]) == 20_000


def test_no_message_is_held_once_it_is_read(pair: Pair) -> None:
    held = "{line.split()[4] for line in open('/proc/self/maps') if 'memfd:state' in line}"
    of_earlier_tests = eval(held)
    pair.local("x = {n: str(n) for n in range(200_000)}")
    pair.remote("y = [n / 3 for n in range(200_000)]", "x")
    assert eval(held) <= of_earlier_tests
    assert pair.ask(held) == set()
    parts = [part for known in pair.table._numbering.objects if type(known) is tuple for part in known]
    (content,) = (part for part in parts if type(part) is memoryview)
    with pytest.raises(ValueError, match="released"):
        bytes(content)


WRITES = [
    lambda table, n: table.__setitem__(n, n),
    lambda table, n: table.__setitem__(n, 1),
    lambda table, n: table.pop(n, None),
    lambda table, n: table.setdefault(n, [n]),
    lambda table, n: table.update({n: 0}),
    lambda table, n: table.update(zip(range(n), range(n), strict=True)),
    lambda table, n: table.popitem() if table else None,
    lambda table, n: table.clear(),
    lambda table, n: table.__ior__({n: n, "x": 2}),
    lambda table, n: exec(f"t[{n}] = {n}", {"t": table}),
    lambda table, n: exec(f"x = {n}", table),
    lambda table, n: [table.get(n), list(table), table == {}, dict(table), repr(table), table.copy(), table | {1: 2}],
]


@given(st.lists(st.tuples(st.sampled_from(WRITES), st.integers(0, 30)), max_size=60))
def test_a_dict_of_one_stamp_holds_the_same(writes: list[tuple[Any, int]]) -> None:
    table: dict[Any, Any] = {"a": 1}
    held: dict[int | None, list[Any]] = {}
    kept = []  # so that no id is reused
    for write, number in writes:
        write(table, number)
        kept.append(list(table.items()))
        if stamp(table) is not None:
            content = [id(part) for pair in table.items() for part in pair]
            assert held.setdefault(stamp(table), content) == content


def test_this_python_keeps_stamps_where_it_should() -> None:
    table = dict.fromkeys(range(MANY))
    before = stamp(table)
    assert (before is not None) == (sys.version_info < (3, 14))
    list(table.items())
    assert stamp(table) == before
