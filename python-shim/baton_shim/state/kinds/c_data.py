"""Data of ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from baton_shim.state import memory
from baton_shim.state.kinds.base import Here, Kind, State, alike
from baton_shim.state.refusal import StandIn

C_DATA: tuple[type, ...] = (ctypes.Array, ctypes.Structure, ctypes.Union, ctypes._SimpleCData)


def is_c_data_type(kind: type) -> bool:
    return issubclass(kind, C_DATA)


class CDataKind(Kind):
    """Numbers, arrays and structures. Objects with a pointer cannot be pickled, so they are not sent.

    An element of an array, a structure within another, and the results of `from_buffer` share another object's memory,
    and continue to do so.
    """

    name = "ctypes"
    blind = True
    changes = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.view, self.set_attributes)

    def reduce(self, obj: Any) -> Any:
        owner, offset = _owner_of(obj)
        if owner is None:
            return None
        self.check(obj)
        view, set_attributes = self._anchors
        return view, (type(obj), owner, offset), attributes_of(obj), None, None, set_attributes

    def view(self, kind: Any, owner: Any, offset: int) -> Any:
        return owner if type(owner) is StandIn else kind.from_buffer(owner, offset)

    def check(self, obj: Any) -> None:
        obj.__reduce__()  # raises an error if it contains a pointer

    def read(self, obj: Any) -> State:
        return bytes(obj), attributes_of(obj)

    def same(self, obj: Any, state: State) -> bool:
        return memory.holds(obj, state[0]) and alike(attributes_of(obj), state[1])

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        yield _owner_of(obj)[0]
        yield from (value for _, value in attributes_of(obj))

    def apply(self, obj: Any, content: Any) -> None:
        data, attributes = content
        memory.write(ctypes.addressof(obj), data)
        self.set_attributes(obj, attributes)

    def set_attributes(self, obj: Any, attributes: Any) -> None:
        if attributes or attributes_of(obj):
            vars(obj).clear()
            vars(obj).update(attributes)


def attributes_of(obj: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(getattr(obj, "__dict__", {}).items())


def _owner_of(obj: Any) -> tuple[Any, int]:
    """The object whose memory this one shares, and the offset in it."""
    owner = obj._b_base_
    if owner is not None:
        return owner, ctypes.addressof(obj) - ctypes.addressof(owner)
    kept = obj._objects
    view = kept.get("ffffffff") if type(kept) is dict else None
    if type(view) is not memoryview or view.readonly or view.obj is None:
        return None, 0
    return view.obj, ctypes.addressof(obj) - memory.address_of(view)
