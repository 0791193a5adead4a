"""Plain lists, dicts and sets, byte arrays, and large containers of plain values as one leaf."""

from __future__ import annotations

import array
import io
import pickle
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import is_
from typing import Any

from baton_shim.state.kinds.base import ATOMS, Kind, State, all_alike, hold_the_same

LEAF_ELEMENTS = 10_000
LEAF_TYPES = (list, dict, set)


class ListKind(Kind):
    name = "list"
    blind = True
    changes = True

    def read(self, obj: Any) -> State:
        return tuple(obj)

    def same(self, obj: Any, state: State) -> bool:
        return len(obj) == len(state) and (all(map(is_, obj, state)) or all_alike(obj, state))

    def all_same(self, objects: Sequence[Any], states: Sequence[State]) -> bool:
        return hold_the_same(objects, states)

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return state  # type: ignore[no-any-return]

    def apply(self, obj: Any, content: Any) -> None:
        obj[:] = content


class DictKind(Kind):
    name = "dict"
    blind = True
    changes = True
    hashes = True

    def read(self, obj: Any) -> State:
        return tuple(obj), tuple(obj.values())

    def same(self, obj: Any, state: State) -> bool:
        keys, values = state
        return len(obj) == len(keys) and all_alike(obj.values(), values) and all_alike(obj, keys)

    def all_same(self, objects: Sequence[Any], states: Sequence[State]) -> bool:
        keys, values = zip(*states, strict=True)
        return hold_the_same(objects, keys) and hold_the_same(list(map(dict.values, objects)), values)

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return chain(*state)

    def apply(self, obj: Any, content: Any) -> None:
        keys, values = content
        obj.clear()
        obj.update(zip(keys, values, strict=True))


class SetKind(Kind):
    name = "set"
    blind = True
    changes = True
    hashes = True

    def read(self, obj: Any) -> State:
        return tuple(obj)

    def same(self, obj: Any, state: State) -> bool:
        if len(obj) != len(state):
            return False
        return all(map(is_, obj, state)) or set(map(id, obj)) == set(map(id, state))

    def all_same(self, objects: Sequence[Any], states: Sequence[State]) -> bool:
        return hold_the_same(objects, states)

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return state  # type: ignore[no-any-return]

    def apply(self, obj: Any, content: Any) -> None:
        obj.clear()
        obj.update(content)


class BytesKind(Kind):
    """`bytearray` and `array.array`."""

    name = "bytes"
    blind = True
    changes = True

    def read(self, obj: Any) -> State:
        return obj.tobytes() if isinstance(obj, array.array) else bytes(obj)

    def same(self, obj: Any, state: State) -> bool:
        with memoryview(obj) as view:
            return view.nbytes == len(state) and bool(view.cast("B") == state if view.nbytes else True)

    def content(self, obj: Any, state: State) -> Any:
        return state, dict(obj.__dict__) if hasattr(obj, "__dict__") else None

    def apply(self, obj: Any, content: Any) -> None:
        data, attributes = content
        if isinstance(obj, array.array):
            obj[:] = array.array(obj.typecode, data)
        else:
            obj[:] = data
        if attributes is not None:
            obj.__dict__.clear()
            obj.__dict__.update(attributes)


class LeafKind(Kind):
    """How a large container of plain values travels: whole, as a pickle of its own whose objects get no numbers."""

    name = "leaf"
    blind = True
    changes = True

    def content(self, obj: Any, state: State) -> Any:
        file = io.BytesIO()
        pickler = pickle.Pickler(file, protocol=5)
        pickler.fast = True
        pickler.dump(obj)
        return pickle.PickleBuffer(file.getvalue())

    def apply(self, obj: Any, content: Any) -> None:
        received = pickle.loads(content)
        if type(obj) is list:
            obj[:] = received
        else:
            obj.clear()
            obj.update(received)


def is_leaf(obj: Any) -> bool:
    """A large container of plain values, or of tuples of them."""
    kind = type(obj)
    if kind not in LEAF_TYPES or len(obj) < LEAF_ELEMENTS:
        return False
    if kind is not dict:
        return _all_plain(obj)
    return _all_plain(obj) and _all_plain(obj.values())


def _all_plain(elements: Any) -> bool:
    kinds = set(map(type, elements))
    if kinds <= ATOMS:
        return True
    if not kinds <= ATOMS | {tuple}:
        return False
    inner = chain.from_iterable(element for element in elements if type(element) is tuple)
    return set(map(type, inner)) <= ATOMS
