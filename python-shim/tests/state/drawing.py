"""Objects as a list of plain values: each object once, and its number in place of each further reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_PLAIN = (int, float, str, bool, bytes, type(None))


class Drawing:
    def __init__(self, draw: Callable[[Any], Any]) -> None:
        """`draw` describes what an object consists of, and calls `refer` for its parts."""
        self._draw = draw
        self._kept: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.drawn: list[Any] = []

    def refer(self, obj: Any) -> Any:
        if type(obj) in _PLAIN:
            return repr(obj)
        if id(obj) not in self.numbers:
            number = self.numbers[id(obj)] = len(self._kept)
            self._kept.append(obj)
            self.drawn.append(None)
            self.drawn[number] = self._draw(obj)
        return self.numbers[id(obj)]
