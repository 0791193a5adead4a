"""The work for many objects grows with their number, not with its square. It is counted, not timed."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from baton_shim.state import Table, numbering, paths, writing
from baton_shim.state.culprits import reasons_of, unpackable
from baton_shim.state.fresh import numbered_after
from harness import Pair


class Counted:
    """Counts the calls of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.calls = function, 0
        self.returned: list[Any] = []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        self.returned.append(self.function(*arguments, **named))
        return self.returned[-1]


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """The objects whose parts the search for paths has looked at."""
    counted = Counted(paths._parts)
    monkeypatch.setattr(paths, "_parts", counted)
    return counted


def generators(count: int) -> Iterator[Any]:
    return ((n for n in range(9)) for _ in range(count))


def test_one_search_finds_the_paths_to_all_objects_that_stay(pair: Pair, visits: Counted) -> None:
    held = {"first": [[n] for n in range(300)], "then": [[one] for one in generators(300)]}
    pair.namespace["held"] = held
    pair.remote("seen = [repr(one) for one, in held['then']]", "held")
    text = "<'held['then'][{}][0]' is a generator and stayed in your notebook>"
    assert pair.namespace["seen"] == [text.format(n) for n in range(300)]
    assert visits.calls <= 1000


def test_names_of_objects_that_stay(visits: Counted) -> None:
    namespace = {f"name{n}": one for n, one in enumerate(generators(200))}
    namespace["again"] = namespace["name7"]
    table = Table(namespace, home=False)
    left = table.snapshot(namespace).left
    assert left.keys() == namespace.keys() and set(left.values()) == {"is a generator"}
    assert visits.calls <= 300


def test_the_path_through_many_levels(visits: Counted) -> None:
    held: Any = list(generators(50))
    for _ in range(50):
        held = [held]
    table = Table({"held": held, "other": [None]})
    table.snapshot(["held", "other"], certain=frozenset())
    assert len(table.left_behind) == 50 and visits.calls <= 110


def test_a_name_of_none_is_not_blamed_for_deep_nesting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "with_deep_stack", lambda dump: dump())
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    values = {"nothing": None, "some": [None], "deep": deep}
    found = unpackable(lambda: Table({}), values)
    assert reasons_of(found) == {"deep": "holds objects that are nested too deeply"}
    with pytest.raises(RecursionError):
        Table(values).snapshot(values)


@pytest.mark.parametrize("changed", ["small[0] += 1", "small = [[n] for n in range(9)]", "known[7].append(small)"])
def test_a_message_does_not_read_all_that_both_ends_know(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """What it numbers is found among what it saves."""
    pair.local("known = [[n] for n in range(400)]; small = [1]")
    pair.remote("", "known", "small")
    monkeypatch.setattr(writing, "RECORDED_ABOVE", 400)
    asked = Counted(numbering.numbered_after)
    monkeypatch.setattr(numbering, "numbered_after", asked)
    pair.local(changed)
    pair.remote("seen = known, small; known[8].append(small)", "known", "small")
    assert asked.calls == 1 and asked.returned[0] is not None
    assert pair.namespace["seen"] == (pair.namespace["known"], pair.namespace["small"])
    assert pair.namespace["known"][8][-1] is pair.namespace["small"] is pair.namespace["seen"][1]
    pair.local("known[9].append(small)")
    pair.remote("same = known[9][-1] is small", "known", "small")
    assert pair.namespace["same"] and asked.calls == 2


def test_numbers_that_cannot_be_asked_for() -> None:
    """Then the whole memo is read."""
    known = [object() for _ in range(300)]
    start = {id(obj): (number, obj) for number, obj in enumerate(known)}
    one, other, message = [1], [known[7]], ((),)
    pickler = pickle.Pickler(io.BytesIO(), protocol=5)
    pickler.memo = start
    pickler.dump((one, other))
    pickler.dump(message)
    *parts, last = (obj for number, obj in sorted(pickler.memo.copy().values(), key=lambda e: e[0]) if number >= 300)
    assert last is message
    found = numbered_after(start, pickler.memo, [message, 5, (), *parts, one, known[3]], message)
    assert found is not None and list(map(id, found)) == [*map(id, parts), id(message)]
    for saved, end in (
        ([message, *parts[1:]], message),  # one was not recorded
        ([*parts, message, [2]], message),  # a list that has no number
        ([*parts, message, type("Other", (), {})()], message),  # an object that has none
        ([*parts, message], parts[0]),
        (parts, message),
    ):
        assert numbered_after(start, pickler.memo, saved, end) is None
