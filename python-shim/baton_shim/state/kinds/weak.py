"""Weak collections: they are sent with what is alive in them, and hold it weakly on the other side, too."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from baton_shim.state.kinds.base import Here, Kind, State, all_alike

WEAK_COLLECTIONS = (weakref.WeakValueDictionary, weakref.WeakKeyDictionary, weakref.WeakSet)


class WeakCollectionKind(Kind):
    name = "weak collection"
    changes = True
    hashes = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new, self.apply)

    def new(self, kind: type) -> Any:
        return kind()

    def reduce(self, obj: Any) -> Any:
        return self._anchors[0], (type(obj),), self.content(obj, None), None, None, self._anchors[1]

    def read(self, obj: Any) -> State:
        """The ids of the living elements: a state must not keep them alive."""
        return tuple(map(id, self.content(obj, None)))

    def same(self, obj: Any, state: State) -> bool:
        now = self.read(obj)
        return len(now) == len(state) and (
            all_alike(now, state) or (isinstance(obj, weakref.WeakSet) and set(now) == set(state))
        )

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return tuple(self.content(obj, state))

    def content(self, obj: Any, state: State) -> Any:
        """The elements, or each key followed by its value."""
        if isinstance(obj, weakref.WeakSet):
            return tuple(obj)
        return tuple(part for pair in obj.items() for part in pair)

    def apply(self, obj: Any, content: Any) -> None:
        obj.clear()
        if isinstance(obj, weakref.WeakSet):
            obj.update(content)
        else:
            obj.update(zip(content[::2], content[1::2], strict=True))
