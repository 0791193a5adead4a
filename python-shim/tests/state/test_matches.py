"""Matches of regular expressions are the same in the other kernel, however they were found."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

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
