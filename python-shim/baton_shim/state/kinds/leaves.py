"""Large containers of plain values: each is sent whole, as a separate pickle whose objects get no numbers."""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection
from itertools import chain, islice
from typing import Any, ClassVar

from baton_shim.state.kinds.base import ATOMS, Here, Kind, State
from baton_shim.state.kinds.containers import DictKind, ListKind, SetKind
from baton_shim.state.writes import stamp

LEAF_ELEMENTS = 10_000
LEAF_TYPES = (list, dict, set)
_SAMPLE = 1000


class LeafKind(Kind):
    name = "leaf"
    blind = True
    changes = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._of: dict[type, Kind] = {list: ListKind(here), dict: DictKind(here), set: SetKind(here)}

    def read(self, obj: Any) -> State:
        """The contents; for a dict, if Python keeps one, a stamp that changes with the contents."""
        written = stamp(obj) if type(obj) is dict else None
        return self._of[type(obj)].read(obj) if written is None else written

    def same(self, obj: Any, state: State) -> bool:
        return stamp(obj) == state if type(state) is int else self._of[type(obj)].same(obj, state)

    def read_if_leaf(self, obj: Any) -> State | None:
        """The state of a leaf before any of it was examined; None if it is not a leaf."""
        if type(obj) not in self._of or len(obj) < LEAF_ELEMENTS:
            return None
        state = self.read(obj)
        return state if is_leaf(obj) else None

    def content(self, obj: Any, state: State) -> Any:
        if type(obj) is dict:
            return pickle.PickleBuffer(pickled(_Items(obj), obj.values()))
        return pickle.PickleBuffer(pickled(obj, obj))

    def apply(self, obj: Any, content: Any) -> None:
        obj.clear()
        with content:  # the object that carried it has a number, and so lives until the next message
            if type(obj) is dict:
                _Items.fill(obj, content)
            elif type(obj) is list:
                obj += pickle.loads(content)
            else:
                obj |= pickle.loads(content)


class _Items:
    """Pickles as the items of a dict, to be loaded into another dict. A second table would take time and memory."""

    filled: ClassVar[dict[Any, Any]]

    def __init__(self, of: dict[Any, Any]) -> None:
        self._of = of

    def __reduce__(self) -> tuple[Any, ...]:
        return _filled, (), None, None, iter(self._of.items())

    @classmethod
    def fill(cls, obj: dict[Any, Any], content: Any) -> None:
        cls.filled = obj
        try:
            pickle.loads(content)
        finally:
            del cls.filled


def _filled() -> dict[Any, Any]:
    return _Items.filled


def is_leaf(obj: Any) -> bool:
    """Whether it is a large container of plain values, or of tuples of them."""
    kind = type(obj)
    if kind not in LEAF_TYPES or len(obj) < LEAF_ELEMENTS:
        return False
    if kind is not dict:
        return all_plain(obj)
    return all_plain(obj) and all_plain(obj.values())


def all_plain(elements: Collection[Any]) -> bool:
    kinds = set(map(type, elements))
    if kinds <= ATOMS:
        return True
    if not kinds <= ATOMS | {tuple}:
        return False
    inner = chain.from_iterable(element for element in elements if type(element) is tuple)
    return set(map(type, inner)) <= ATOMS


def pickled(obj: Any, elements: Collection[Any]) -> bytes:
    """A pickle that writes shared objects once; if few are shared, one without that check, five times faster."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    pickler.fast = _are_seldom_shared(elements)
    pickler.dump(obj)
    return file.getvalue()


def _are_seldom_shared(elements: Collection[Any]) -> bool:
    sample = list(islice(elements, 0, None, len(elements) // _SAMPLE + 1))
    return 2 * len(set(map(id, sample))) > len(sample)
