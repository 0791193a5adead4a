"""Matches of regular expressions (`re.match`). Python creates them only by searching, so the other kernel searches
again.

**Invariant:** a match is sent only if searching again gives the same result, which is tried first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from baton_shim.state.kinds.base import Fixed, Here, State


class MatchKind(Fixed):
    name = "match"

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (found_again,)

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return obj.re, obj.string

    def reduce(self, obj: re.Match[Any]) -> Any:
        for number, candidate in enumerate(candidates(obj.re, obj.string, obj.pos, obj.endpos)):
            if candidate is not None and candidate.regs == obj.regs:
                return self._anchors[0], (obj.re, obj.string, obj.pos, obj.endpos, number)
        raise TypeError("searching again does not find it; keep the groups that you need: match.groups()")


def candidates(pattern: re.Pattern[Any], string: Any, start: int, end: int) -> Iterator[re.Match[Any] | None]:
    yield pattern.match(string, start, end)
    yield pattern.fullmatch(string, start, end)
    yield from pattern.finditer(string, start, end)  # the first is that of `search`


def found_again(pattern: re.Pattern[Any], string: Any, start: int, end: int, number: int) -> Any:
    return next(one for n, one in enumerate(candidates(pattern, string, start, end)) if n == number)
