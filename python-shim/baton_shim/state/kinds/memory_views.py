"""Views of `bytes` (`memoryview`), as widgets hold for images, sounds and uploaded files.

A view travels with the object whose memory it shows.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from baton_shim.state import memory
from baton_shim.state.kinds.base import Here, Kind, State
from baton_shim.state.refusal import StandIn, owner_of


class Layout(NamedTuple):
    """Which part of the bytes a view shows, and how."""

    format: str
    shape: tuple[int, ...]
    step: int
    """Between the elements of a view with one dimension; a view with several has no gaps."""
    first: int
    """The offset of the lowest element, in bytes."""


class MemoryViewKind(Kind):
    """A view does not change, except that it may be released, which cannot be undone: then another one is sent."""

    name = "memory_view"
    blind = True
    changes = True
    replaced = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.view, self.released)

    def reduce(self, obj: Any) -> Any:
        owner = owner_of(obj)
        return (self._anchors[1], ()) if owner is None else (self._anchors[0], (owner, *layout_of(obj, owner)))

    def view(self, owner: Any, *layout: Any) -> Any:
        return owner if type(owner) is StandIn else view_of(owner, Layout(*layout))

    def released(self) -> memoryview:
        view = memoryview(b"")
        view.release()
        return view

    def read(self, obj: Any) -> State:
        return owner_of(obj)

    def same(self, obj: Any, state: State) -> bool:
        return owner_of(obj) is state

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        yield state


def layout_of(view: Any, owner: bytes) -> Layout:
    step = view.strides[0] // view.itemsize if view.ndim == 1 else 1
    first = memory.first_address(view) - memory.first_address(owner) if view.nbytes else 0
    if step < 0 and view.nbytes:
        first += (view.shape[0] - 1) * view.strides[0]
    return Layout(view.format, view.shape, step, first)


def view_of(owner: bytes, layout: Layout) -> Any:
    size = struct.calcsize(layout.format)
    whole: Any = memoryview(owner)
    if len(layout.shape) != 1:
        count = math.prod(layout.shape)
        return whole[layout.first : layout.first + count * size].cast(layout.format, layout.shape)
    (length,) = layout.shape
    if not length:  # a view without elements cannot be cast
        return whole[: len(owner) - len(owner) % size].cast(layout.format)[0 : 0 : layout.step]
    count = (length - 1) * abs(layout.step) + 1
    return whole[layout.first : layout.first + count * size].cast(layout.format)[:: layout.step]
