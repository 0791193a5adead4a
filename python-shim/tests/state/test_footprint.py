"""Which mutable objects values reach, and whether two uses of the notebook have one in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from baton_shim.state import Table
from baton_shim.state.footprint import Footprint, merged, overlap
from harness import Pair
from hypothesis import given
from hypothesis import strategies as st

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)).map(lambda pair: (pair[0], sum(pair))), max_size=8)


@given(RANGES, RANGES)
def test_ranges_overlap_as_sets_of_addresses_do(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    def addresses(ranges: list[tuple[int, int]]) -> set[int]:
        return {address for begin, end in ranges for address in range(begin, end)}

    assert addresses(merged(one)) == addresses(one)
    assert overlap(merged(one), merged(other)) == (not addresses(one).isdisjoint(addresses(other)))


class Handle:
    def __init__(self, held: Any) -> None:
        self.held = held

    def __reduce__(self) -> Any:
        raise TypeError("it stays")


def held_by(obj: Any) -> list[Any] | None:
    return [obj.held] if isinstance(obj, Handle) else None


def reached(*values: Any) -> Footprint:
    return Table({}).footprint(values, held_by)


SHARED: list[Any] = []
ARRAY = np.zeros(10)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ([SHARED], {"a": (SHARED,)}, True),
        ([1, "a", (2,)], [1, "a", (2,)], False),
        (ARRAY[:5], ARRAY[4:], True),
        (ARRAY, ARRAY.copy(), False),
        (SHARED.append, SHARED, True),
        (len, len, False),
        (reached, reached, False),
        (np.random, np.random, False),
        ([Handle([SHARED])], SHARED, True),
        (Handle(1), Handle(1), False),
    ],
)
def test_what_two_values_have_in_common(one: Any, other: Any, common: bool) -> None:
    assert (reached(one).common(reached(other)) is not None) == common


def test_what_cannot_be_looked_into_is_told() -> None:
    generator = (n for n in SHARED)
    assert reached([generator]).opaque is generator
    assert reached([1], Handle(2)).opaque is None


def test_global_variables_of_a_script_count_if_a_function_assigns_them(pair: Pair) -> None:
    script = "number, rows = 0, []\ndef count(): global number; number += 1\ndef read(): return number\ndef add(): rows"
    pair.local(f"script = {{'__name__': 'script'}}; exec({script!r}, script)")
    pair.local("count, read, add, rows = map(script.get, ('count', 'read', 'add', 'rows'))")
    counted = pair.table.footprint([pair.namespace["count"]], lambda obj: None)
    assert counted.common(pair.table.footprint([pair.namespace["read"]], lambda obj: None)).name == "number"
    added = pair.table.footprint([pair.namespace["add"]], lambda obj: None)
    assert list(added.objects.values()) == [pair.namespace["rows"]]
