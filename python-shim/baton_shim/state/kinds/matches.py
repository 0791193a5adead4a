"""Matches of regular expressions (`re.match`). Python creates them only by searching, so the other kernel searches
again.

On both ends, all matches that one search found (`list(re.finditer(...))`) take one search in each message, or two if
they are not in the order of the text. In the receiver, equal matches take one each.

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
        self._anchors = (self.find_again,)

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return obj.re, obj.string

    def reduce(self, obj: re.Match[Any]) -> Any:
        asked = obj.re, obj.string, obj.pos, obj.endpos
        number = self._search(Numbers, *asked).number_of(obj)
        if number is None:
            raise TypeError("searching again does not find it; keep the groups that you need: match.groups()")
        return self._anchors[0], (*asked, number)

    def find_again(self, pattern: re.Pattern[Any], string: Any, start: int, end: int, number: int) -> Any:
        return self._search(Results, pattern, string, start, end).take(number)

    def _search(self, kind: Any, pattern: re.Pattern[Any], string: Any, start: int, end: int) -> Any:
        """The search of this message, or a new one: a search keeps a `bytearray` and the like from being resized."""
        if type(string) not in (str, bytes):
            return kind(pattern, string, start, end)
        searches, key = self.here.searches, (id(pattern), id(string), start, end)
        if key not in searches:
            searches[key] = kind(pattern, string, start, end)
        return searches[key]


class Numbers:
    """The numbers of the results of a search, which goes as far as it is asked to.

    Only after a request for a match that it has passed does it begin again, and remembers what it passes.
    """

    def __init__(self, *asked: Any) -> None:
        self._asked = asked  # also keeps the ids of pattern and string valid
        self._ahead = enumerate(candidates(*asked))
        self._remembers = False
        self._passed: dict[Any, int] = {}  # Bounded by the results of the search, until the message ends.

    def number_of(self, match: re.Match[Any]) -> int | None:
        number = self._find(match)
        if number is None and not self._remembers:
            self._ahead = enumerate(candidates(*self._asked))
            self._remembers = True
            number = self._find(match)
        return number

    def _find(self, match: re.Match[Any]) -> int | None:
        wanted = described(match)
        if wanted in self._passed:
            return self._passed[wanted]
        for number, found in self._ahead:
            if found is None:
                continue
            if not self._remembers:
                self._passed.clear()
            self._passed.setdefault(described(found), number)
            if described(found) == wanted:
                return number
            if number >= IN_ORDER and found.start() > match.start():
                return None
        return None


class Results:
    """The results of a search. Each request gets an object of its own, so equal matches take a search each."""

    def __init__(self, *asked: Any) -> None:
        self._asked = asked  # also keeps the ids of pattern and string valid
        self._searches: list[Search] = []  # Bounded by the requests for one match.

    def take(self, number: int) -> Any:
        for search in self._searches:
            if number in search.passed:
                return search.passed.pop(number)
        behind = [search for search in self._searches if search.next <= number]
        search = max(behind, key=lambda search: search.next, default=None) or self._begin()
        return search.result(number)

    def _begin(self) -> Search:
        # As long as the requests are in the order of the text, nothing that is passed is asked for.
        search = Search(candidates(*self._asked), remembers=bool(self._searches))
        self._searches.append(search)
        return search


class Search:
    """One pass through the text."""

    def __init__(self, ahead: Iterator[re.Match[Any] | None], remembers: bool) -> None:
        self._ahead = ahead
        self._remembers = remembers
        self.next = 0
        self.passed: dict[int, re.Match[Any] | None] = {}  # Bounded by the results, until the message ends.

    def result(self, number: int) -> Any:
        for found in self._ahead:
            passed, self.next = self.next, self.next + 1
            if passed == number:
                return found
            if self._remembers:
                self.passed[passed] = found
        raise LookupError("The search has fewer results here")


def described(match: re.Match[Any]) -> Any:
    return match.regs, match.lastindex


IN_ORDER = 2  # the candidates from this number on follow each other in the text


def candidates(pattern: re.Pattern[Any], string: Any, start: int, end: int) -> Iterator[re.Match[Any] | None]:
    yield pattern.match(string, start, end)
    yield pattern.fullmatch(string, start, end)
    yield from pattern.finditer(string, start, end)  # the first is that of `search`
