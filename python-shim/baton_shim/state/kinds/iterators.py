"""Iterators of Python itself that are half used: `zip`, `map`, `itertools`, over tuples, sets and the like.

One that goes through something that stays in its kernel, such as a generator or an open file, stays with it.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from typing import Any

from baton_shim.state.kinds.base import Here, State
from baton_shim.state.kinds.reduced import ReducedKind, build
from baton_shim.state.refusal import Stayed, StayedError

_OVER_SET: type = type(iter(set()))
_OVER_ORDERED: type = type(iter(collections.OrderedDict()))
_TYPES: frozenset[type] = frozenset(
    (
        *(map, zip, filter, enumerate, reversed, _OVER_SET, _OVER_ORDERED, type(iter(int, 1))),
        *(kind for kind in vars(itertools).values() if isinstance(kind, type)),
    )
)


def is_iterator_type(kind: type) -> bool:
    return kind in _TYPES


class IteratorKind(ReducedKind):
    name = "iterator"

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new, self.over)

    def reduce(self, obj: Any) -> Any:
        if type(obj) in (_OVER_SET, _OVER_ORDERED):  # which pickle as iterators over lists
            _, (left, *_), *_ = obj.__reduce__()
            return self._anchors[1], (type(obj) is _OVER_SET, left)
        return self._anchors[0], self.form(obj)

    def new(self, *form: Any) -> Any:
        try:
            return build(form)
        except StayedError as error:
            return Stayed(str(error), error.hint)

    def over(self, of_set: bool, left: list[Any]) -> Iterator[Any]:
        return iter(set(left)) if of_set else iter(collections.OrderedDict(enumerate(left)).values())

    def read(self, obj: Any) -> State:
        way, form = super().read(obj)
        return "replace" if type(obj) in (_OVER_SET, _OVER_ORDERED) else way, form
