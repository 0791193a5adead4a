"""Matches of regular expressions are the same in the other kernel, however they were found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from baton_shim.state.kinds import matches
from baton_shim.state.kinds.matches import candidates
from harness import Pair
from hypothesis import assume, given, settings
from hypothesis import strategies as st

PATTERNS = (
    "a",
    "(a)|(b)",
    "a*",
    "(?:(a)|b)+",
    r"\bab?",
    "(?<=b)a+",
    "(?<!a)b",
    "^a",
    "a$",
    "(?m)^b",
    "(a)(?P<last>b)?",
    "",
)
FINDERS: tuple[Callable[[re.Pattern[str], str, int, int], Any], ...] = (
    re.Pattern.search,
    re.Pattern.match,
    re.Pattern.fullmatch,
    lambda *asked: next(iter([*re.Pattern.finditer(*asked)][-1:]), None),
    lambda pattern, string, start, end: pattern.scanner(string, start, end).match(),
)


@settings(max_examples=80)
@given(
    st.sampled_from(PATTERNS),
    st.text("ab\n", max_size=8),
    st.integers(0, 8),
    st.integers(0, 8),
    st.sampled_from(FINDERS),
)
def test_a_match_says_the_same(processes: Pair, pattern: str, text: str, start: int, end: int, find: Any) -> None:
    found = find(re.compile(pattern), text, start, end)
    assume(found is not None)
    processes.start_anew()
    processes.namespace.update(found=found, text=text)
    look = "(found.regs, found.pos, found.endpos, found.lastindex, found.lastgroup, found.re, found.string is text)"
    assert processes.remote(f"seen = {look}; again = found", "found", "text") == {"error": None}
    assert processes.namespace["seen"] == eval(look)
    assert processes.namespace["again"] is found


ASKED = st.tuples(st.sampled_from(PATTERNS), st.integers(0, 2), st.integers(6, 8), st.sampled_from(FINDERS))


@settings(max_examples=20)
@given(st.text("ab\n", min_size=4, max_size=8), st.lists(ASKED, min_size=1, max_size=4), st.randoms())
def test_many_matches_of_a_text_in_any_order(processes: Pair, text: str, asked: list[Any], random: Any) -> None:
    """Equal matches remain separate objects."""
    found: list[Any] = []
    for pattern, start, end, find in asked:
        compiled = re.compile(pattern)
        found += [*compiled.finditer(text, start, end), *compiled.finditer(text, start, end)]
        found += filter(None, [find(compiled, text, start, end)])
    random.shuffle(found)
    processes.start_anew()
    processes.namespace.update(found=found, text=text)
    look = "[(one.regs, one.pos, one.endpos, one.lastindex, one.re, one.string is text) for one in found]"
    count = "len(set(map(id, found)))"
    code = f"seen = {look}; count = {count}; own = [*found, *re.finditer('a|b', text)][::-1]"
    assert processes.remote(f"import re; {code}", "found", "text") == {"error": None}
    assert processes.namespace["seen"] == eval(look, processes.namespace)
    assert processes.namespace["count"] == len(found)
    own = processes.namespace["own"]
    assert own[::-1][: len(found)] == found
    assert [one.regs for one in own[::-1][len(found) :]] == [one.regs for one in re.finditer("a|b", text)]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What searches of this process find."""
    found: list[Any] = []

    def counted(*asked: Any) -> Iterator[Any]:
        for one in candidates(*asked):
            found.append(one)
            yield one

    monkeypatch.setattr(matches, "candidates", counted)
    return found


FOUND = "re.finditer('a', text)"
ORDERS = {
    "as in the text": (f"list({FOUND})", 1),
    "backwards": (f"list({FOUND})[::-1]", 2),
    "twice": (f"[*{FOUND}, *{FOUND}]", 3),
    "in pairs": (f"[one for pair in zip({FOUND}, {FOUND}) for one in pair]", 3),
}


@pytest.mark.parametrize("order", ORDERS)
def test_few_searches_find_all_matches_of_a_text(processes: Pair, results: list[Any], order: str) -> None:
    found, searches = ORDERS[order]
    processes.start_anew()
    processes.local(f"import re; text = 'ab' * 300; sent = {found}")
    processes.remote(f"import re; returned = {found}", "text", "sent")
    sent, returned = (processes.namespace[name] for name in ("sent", "returned"))
    assert [one.regs for one in sent] == [one.regs for one in returned]
    assert len(results) <= 2 * searches * 302


def test_a_text_that_can_be_resized(processes: Pair) -> None:
    """A search that goes on would prevent that."""
    processes.start_anew()
    processes.local("import re; text = bytearray(b'abab'); found = list(re.finditer(b'a', text))")
    code = "seen = [one.start() for one in found]; del found; text += b'ab'; found = list(re.finditer(b'a', text))"
    processes.remote(f"import re; {code}", "text", "found")
    assert processes.namespace["seen"] == [0, 2]
    assert [one.start() for one in processes.namespace["found"]] == [0, 2, 4]
