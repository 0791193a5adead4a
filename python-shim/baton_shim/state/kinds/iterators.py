"""Python's own iterators, partly used: `zip`, `map`, `itertools`, over tuples, sets and the like.

An iterator over something that stays in its kernel, such as a generator or an open file, stays with it.

Python 3.14 has removed pickling from the iterators of `itertools` (https://github.com/python/cpython/issues/101588).
Some of them can be rebuilt completely from what the garbage collector sees of them; the others stay.
"""

from __future__ import annotations

import collections
import gc
import itertools
import re
from collections.abc import Iterator
from typing import Any

from baton_shim.state.kinds.base import Here, State
from baton_shim.state.kinds.reduced import ReducedForm, ReducedKind, build
from baton_shim.state.refusal import StandIn, StandInError

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

    def form(self, obj: Any) -> ReducedForm:
        kind: Any = type(obj)
        return form_by_parts(obj) if kind.__reduce__ is object.__reduce__ else super().form(obj)

    def reduce(self, obj: Any) -> Any:
        if type(obj) in (_OVER_SET, _OVER_ORDERED):  # they pickle as iterators over lists
            _, (left, *_), *_ = obj.__reduce__()
            return self._anchors[1], (type(obj) is _OVER_SET, left)
        return self._anchors[0], self.form(obj)

    def new(self, *form: Any) -> Any:
        try:
            return build(form)
        except StandInError as error:
            return StandIn(str(error), error.hint)

    def over(self, of_set: bool, left: list[Any]) -> Iterator[Any]:
        return iter(set(left)) if of_set else iter(collections.OrderedDict(enumerate(left)).values())

    def read(self, obj: Any) -> State:
        way, form = super().read(obj)
        return "replace" if type(obj) in (_OVER_SET, _OVER_ORDERED) else way, form


def form_by_parts(obj: Any) -> ReducedForm:
    """How to rebuild it from its referents. Raises TypeError if they are not sufficient."""
    kind = type(obj)
    parts = [part for part in gc.get_referents(obj) if part is not kind]
    function: Any = kind
    arguments: tuple[Any, ...]
    if kind is itertools.count:
        whole = re.match(r"count\((-?\d+)[,)]", repr(obj))  # counted in C; a number of another type is a referent
        arguments = (parts[0] if whole is None else int(whole[1]), parts[-1])
    elif kind is itertools.repeat:
        arguments = (parts[0], *times_left(obj))
    elif kind is itertools.chain:
        function = itertools.chain.from_iterable
        source, *active = parts or [()]  # the source, and the active iterator
        arguments = (itertools.chain(active, source) if active else source,)
    elif kind in (itertools.starmap, itertools.filterfalse):
        iterator, called = parts
        arguments = (called, iterator)
    elif kind is itertools.compress:
        arguments = tuple(parts)
    else:
        raise TypeError(f"cannot pickle {kind.__module__}.{kind.__qualname__} objects from Python 3.14 on")
    return function, arguments, None, [], []


def times_left(repeat: Any) -> tuple[int, ...]:
    try:
        return (repeat.__length_hint__(),)
    except TypeError:  # endless
        return ()
