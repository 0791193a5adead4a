"""Plain lists, dicts and sets, and byte arrays."""

from __future__ import annotations

import array
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import is_
from typing import Any

from baton_shim.state import memory
from baton_shim.state.kinds.base import Kind, State, all_alike, hold_the_same


class ListKind(Kind):
    name = "list"
    can_be_taken = True
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
    can_be_taken = True
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
    can_be_taken = True
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


def is_bytes_type(kind: type) -> bool:
    return issubclass(kind, (array.array, bytearray))


class BytesKind(Kind):
    """`bytearray` and `array.array`."""

    name = "bytes"
    blind = True
    changes = True

    def read(self, obj: Any) -> State:
        return obj.tobytes() if isinstance(obj, array.array) else bytes(obj)

    def same(self, obj: Any, state: State) -> bool:
        """An instance of a derived class counts as changed: its attributes are not in the state."""
        return not hasattr(obj, "__dict__") and memory.holds(obj, state)

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return getattr(obj, "__dict__", {}).values()

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
