"""Finds the objects that a pickler has numbered in one message, at a cost only for what it has saved.

The C pickler returns its memo only as a whole, with all that both ends know. So the pickler records each object that it
saves. A second pickler with the same memo then writes each of them, and what it writes is a reference with the object's
number.

**Invariant:** the numbers come from the memo itself. If any answer is something else, or a number is missing, there is
no result.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Iterable, Mapping
from typing import Any

RECORDED_ABOVE = 10_000
"""With fewer known objects, copying the memo takes less time than recording what is saved."""
_ENTRIES_FOR_ONE = 2  # asking for the number of one object takes as long as copying this many entries of the memo
_NOT_NUMBERED = frozenset((int, float, bool, type(None), pickle.PickleBuffer))  # buffers only beside the pickle
EMPTY: tuple[()] = ()  # one object, which never gets a number
_ANSWER = struct.Struct("<12sIc")
_REFERENCE = pickle.PROTO + b"\5" + pickle.FRAME + struct.pack("<Q", 6) + pickle.LONG_BINGET, pickle.STOP
"""How it writes a number above 255."""


def is_faster(saved: int, known: int) -> bool:
    """Whether asking for the numbers of all saved objects takes less time than copying a memo of the known ones."""
    return 0 < saved * _ENTRIES_FOR_ONE < known


def numbered_after(known: Mapping[int, Any], memo: Any, saved: Iterable[Any], last: Any) -> list[Any] | None:
    """The objects that a dump numbered, in order; None if they cannot be found in this way.

    `known`: the memo with which it began, by id. `memo`: that of the pickler now. `last`: what got the last number.
    """
    new = [obj for obj in _unique(saved) if id(obj) not in known]
    answers = io.BytesIO()
    asked = _Asked(answers, protocol=5)
    asked.memo = memo
    try:
        for obj in new:
            asked.dump(obj)
    except Exception:  # it is not in the memo
        return None
    if answers.tell() != len(new) * _ANSWER.size:
        return None
    found = {}
    for obj, (head, number, end) in zip(new, _ANSWER.iter_unpack(answers.getbuffer()), strict=True):
        if (head, end) != _REFERENCE:
            return None
        found[number] = obj
    numbers = range(len(known), len(known) + len(found))
    fresh = [found[number] for number in numbers if number in found]
    return fresh if len(fresh) == len(new) and fresh and fresh[-1] is last else None


def _unique(saved: Iterable[Any]) -> Iterable[Any]:
    return {id(one): one for one in saved if type(one) not in _NOT_NUMBERED and one is not EMPTY}.values()


class _Asked(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        raise LookupError
