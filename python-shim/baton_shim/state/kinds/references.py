"""Objects that only refer to others: views and proxies of dicts, weak references, streams and modules."""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import importlib
import random
import re
import struct
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from baton_shim.state.kinds.base import Here, Kind, State, imported
from baton_shim.state.kinds.variables import VariablesKind, settle
from baton_shim.state.refusal import StandIn, held_by, standard_stream

SORT_KEY: type = type(functools.cmp_to_key(lambda left, right: 0))
PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
DICT_VIEWS: dict[type, str] = {
    type(getattr(kind(), view)()): view
    for kind in (dict, collections.OrderedDict)
    for view in ("keys", "values", "items")
}

# Marks that `dataclasses` compares by identity, such as `MISSING` and the `_FIELD` of every field.
DATA_CLASS_MARKS: dict[int, str] = {
    id(mark): name
    for name, mark in vars(dataclasses).items()
    if type(mark).__module__ == "dataclasses" and not isinstance(mark, type)
}
MARK_TYPES: tuple[type, ...] = tuple({type(getattr(dataclasses, name)) for name in DATA_CLASS_MARKS.values()})


class ReferenceKind(Kind):
    name = "reference"
    blind = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        references = self.dict_view, self.weak, self.proxy, self.key
        self._anchors = (*references, self.stream, self.main_thread)

    def reduce(self, obj: Any) -> Any:
        dict_view, weak, proxy, key, stream, main_thread = self._anchors
        kind = type(obj)
        if kind in DICT_VIEWS:
            return dict_view, (DICT_VIEWS[kind], self._dict_of(obj))
        if kind is types.MappingProxyType:
            mapping = mapping_of(obj)
            return None if is_of_a_class(mapping) else (types.MappingProxyType, (mapping,))
        if kind is weakref.ref:
            return weak, (obj(), obj.__callback__)
        if kind in PROXIES:
            return proxy, (target_of(obj),)
        if kind in MARK_TYPES:
            return DATA_CLASS_MARKS.get(id(obj))
        if kind is random.SystemRandom:
            return kind, ()
        if kind is struct.Struct:
            return kind, (obj.format,)
        if kind is re.Scanner:  # type: ignore[attr-defined]
            return kind, (obj.lexicon, obj.scanner.flags)
        if kind is SORT_KEY:
            return key, held_by_key(obj)
        if obj is threading.main_thread():
            return main_thread, ()
        name = standard_stream(obj)
        return (stream, (name,)) if name else None

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        if type(obj) in DICT_VIEWS:
            return (self._dict_of(obj),)
        if type(obj) is types.MappingProxyType:
            mapping = mapping_of(obj)
            return mapping.values() if is_of_a_class(mapping) else (mapping,)
        if type(obj) is weakref.ref:
            return obj(), obj.__callback__
        if type(obj) in PROXIES:
            return (target_of(obj),)
        if type(obj) is re.Scanner:  # type: ignore[attr-defined]
            return (obj.lexicon,)
        return held_by_key(obj) if type(obj) is SORT_KEY else ()

    def _dict_of(self, view: Any) -> Any:
        return next(held for held in gc.get_referents(view) if isinstance(held, dict))

    def dict_view(self, kind: str, of: dict[Any, Any]) -> Any:
        return getattr(of, kind)()

    def weak(self, target: Any, callback: Any) -> Any:
        return weakref.ref(_Nothing()) if target is None else weakref.ref(target, callback)

    def proxy(self, target: Any) -> Any:
        return weakref.proxy(_Nothing() if target is None else target)

    def key(self, compare: Any, *of: Any) -> Any:
        key: Any = functools.cmp_to_key(compare)
        return key(*of) if of else key

    def stream(self, name: str) -> Any:
        return getattr(sys, name)

    def main_thread(self) -> Any:
        return threading.main_thread()


class ModuleKind(Kind):
    name = "module"
    blind = True
    changes = True

    def __init__(self, here: Here, variables: VariablesKind) -> None:
        super().__init__(here)
        self._variables = variables
        self._anchors = (self.find, settle)

    def reduce(self, obj: Any) -> Any:
        find, settle = self._anchors
        name = obj.__name__
        return (find, (name,), self.read(obj), None, None, settle) if sys.modules.get(name) is obj else None

    def read(self, obj: Any) -> State:
        return self._variables.of_code(obj)

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return state or ()

    def apply(self, obj: Any, content: Any) -> None:
        settle(obj, content)

    def find(self, name: str) -> Any:
        try:
            return importlib.import_module(name)
        except Exception as error:
            if not self.here.home:  # a module that the cell imported may not be installed in the notebook
                raise
            return StandIn(f"the module {name!r} was imported on the GPU machine, but here: {error}")


def is_reference_type(kind: type) -> bool:
    """Whether the other kernel has its own object in the place of each: a module, a thread, a stream of the kernel."""
    return issubclass(kind, (types.ModuleType, threading.Thread, imported("ipykernel.iostream", "OutStream")))


def target_of(proxy: Any) -> Any:
    """The target; `None` if it is dead."""
    try:
        return proxy.__repr__.__self__
    except ReferenceError:
        return None


def held_by_key(key: Any) -> tuple[Any, ...]:
    """The function that compares and, of a key of one element, that element."""
    return tuple(held for held in gc.get_referents(key) if held is not SORT_KEY)


def mapping_of(proxy: types.MappingProxyType[Any, Any]) -> Any:
    (mapping,) = gc.get_referents(proxy)
    return mapping


def is_of_a_class(mapping: Any) -> bool:
    """Whether it is what `vars` of a class returns, which belongs to the class and is sent as a copy."""
    return "__module__" in mapping and "__doc__" in mapping


DICT_ITERATORS: dict[type, tuple[str, bool]] = {
    type(walk(getattr({}, view)())): (view, walk is reversed)
    for walk in (iter, reversed)
    for view in ("keys", "values", "items")
}


class DictIteratorKind(Kind):
    """A partly used iterator over a dict remains bound to the dict."""

    name = "dict iterator"
    blind = True
    changes = True
    replaced = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new,)

    def read(self, obj: Any) -> State:
        """The dict and the number of remaining items; an exhausted iterator has dropped its dict."""
        of = next((held for held in gc.get_referents(obj) if isinstance(held, dict)), None)
        return of, obj.__length_hint__() if of is not None else 0

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return (state[0],)

    def reduce(self, obj: Any) -> Any:
        return self._anchors[0], (*DICT_ITERATORS[type(obj)], *self.read(obj))

    def new(self, view: str, backwards: bool, of: dict[Any, Any] | None, left: int) -> Any:
        elements = getattr({} if of is None else of, view)()
        iterator = reversed(elements) if backwards else iter(elements)
        for _ in range(len(elements) - left):
            next(iterator)
        if of is None:
            next(iterator, None)
        return iterator


LIST_ITERATORS: dict[type, Callable[[list[Any]], Iterator[Any]]] = {type(walk([])): walk for walk in (iter, reversed)}


class ListIteratorKind(Kind):
    """A partly used iterator over a list remains bound to the list, even if that is shorter now."""

    name = "list iterator"
    blind = True
    changes = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new,)

    def read(self, obj: Any) -> State:
        """The list and the index; an exhausted iterator has dropped its list."""
        _, (of,), *place = obj.__reduce__()
        return (of, *place) if place else (None, 0)

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return (state[0],)

    def reduce(self, obj: Any) -> Any:
        return self._anchors[0], (LIST_ITERATORS[type(obj)] is reversed, *self.read(obj))

    def new(self, backwards: bool, of: list[Any] | None, place: int) -> Any:
        iterator = (reversed if backwards else iter)([] if of is None else of)
        if of is None:
            next(iterator, None)
        else:
            self.apply(iterator, (of, place))
        return iterator

    def must_be_replaced(self, obj: Any, old: State) -> bool:
        return self.read(obj)[0] is not old[0]

    def apply(self, obj: Any, content: Any) -> None:
        of, place = content
        length = list.__len__(of)
        list.extend(of, [None] * (place + 1 - length))  # an iterator refuses an index that does not exist
        obj.__setstate__(place)
        list.__delitem__(of, slice(length, None))


class _Nothing:
    """The target of a weak reference that was dead when it was sent."""

    __slots__ = ("__weakref__",)


class StandInKind(Kind):
    """A stand-in: what it holds may change here, and the other kernel must be informed."""

    name = "stand_in"
    blind = True

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return held_by(obj)


class UnsendableKind(Kind):
    """An object for which the other kernel has a stand-in: unchanged while there is a reason that it stays.

    If its own pickling failed, only its kind can tell whether it has changed: then its state is kind and state.
    """

    name = "unsendable"
    changes = True
    replaced = True

    def __init__(self, here: Here, why_not: Callable[[Any], object]) -> None:
        super().__init__(here)
        self._why_not = why_not

    def same(self, obj: Any, state: State) -> bool:
        if self._why_not(obj) is not None:
            return True
        if state is None:
            return False
        kind, before = state
        return bool(kind.same(obj, before))
