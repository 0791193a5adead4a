"""Objects with their own pickling: compared by their reduced form.

If possible, such an object takes the new state itself. Otherwise a twin is built, and its attributes are grafted onto
the object. If neither is possible (fields in C: pandas' `BlockManager`, Arrow arrays, `enumerate`), the object is sent
again, and its holders are updated to hold the new one.
"""

from __future__ import annotations

import contextlib
import copyreg
import struct
import sys
from collections.abc import Iterable
from operator import is_
from typing import Any

from baton_shim.state.kinds.base import Here, Kind, State, alike
from baton_shim.state.kinds.instances import (
    CONTAINERS,
    container_base,
    contents_of,
    fill,
    reduced_ordinarily,
    slot_names,
)

ReducedForm = tuple[Any, Any, Any, list[Any], list[Any]] | None
"""Callable, arguments, state, list items, dict pairs; `None` for an object that is pickled by name."""

_DEPTH = 5
_NEW = copyreg.__newobj__  # type: ignore[attr-defined]


class ReducedKind(Kind):
    name = "reduced"
    changes = True
    hashes = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._grafts: dict[type, bool] = {}

    def form(self, obj: Any) -> ReducedForm:
        return reduced_form(obj)

    def read(self, obj: Any) -> State:
        """How it is updated (`state`, `graft`, `replace`; `named` if pickled by name), and the frozen form."""
        try:
            form = self.form(obj)
        except Exception as error:
            return "broken", type(error).__name__
        if form is None:
            return "named", None
        # Indexed, not unpacked: a variable would be a second reference to objects that exist only for this reduction.
        if form[2] is not None and hasattr(obj, "__setstate__") and not form[3] and not form[4]:
            way = "state"
        elif self._can_be_grafted(obj):
            way = "graft"
        else:
            way = "replace"
        return way, frozen(form, getattr(obj, "__dict__", None))

    def same(self, obj: Any, state: State) -> bool:
        now = self.read(obj)
        return bool(now[0] == state[0]) and same_form(now[1], state[1])

    def check(self, obj: Any) -> None:
        self.form(obj)

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return inside(state[1])

    def content(self, obj: Any, state: State) -> Any:
        form = self.form(obj)
        if form is None:
            return "named", None
        function, arguments, state_now, items, pairs = form
        state_now = _unshared(state_now, getattr(obj, "__dict__", None))
        if state[0] == "state":
            return "state", (type(obj) if function is _NEW else None, state_now)
        return state[0], (function, arguments, state_now, items, pairs)

    def apply(self, obj: Any, content: Any) -> None:
        way, form = content
        if way == "state":
            kind, form = form
            if kind is not None and type(obj) is not kind:
                obj.__class__ = kind
            with contextlib.suppress(Exception):  # a closed one, for example, shows no attributes
                before = self.form(obj)
                for name in () if before is None else attributes_in(before[2]).keys() - attributes_in(form).keys():
                    obj.__dict__.pop(name, None)  # most `__setstate__` only add
            obj.__setstate__(form)
        elif way == "graft":
            graft(obj, build(form))

    def must_be_replaced(self, obj: Any, old: State) -> bool:
        now = self.read(obj)
        if now[0] == "named":
            return False
        if now[0] == "broken":  # closed, for example: no patch can be made, and a stand-in takes its place
            return True
        if old[0] == "broken":
            return bool(now[0] != "graft")
        if now[0] != old[0] or now[0] == "replace":
            return True
        if now[0] != "state" or same_form(now[1][:2], old[1][:2]):
            return False
        return not (is_of_class_alone(now[1]) and is_of_class_alone(old[1]))  # its constructor's arguments changed

    def holds_for_good(self, obj: Any, old: State, identities: set[int]) -> bool:
        if old[0] == "state":
            return any(id(part) in identities for part in (*inside(old[1][0]), *inside(old[1][1])))
        return bool(old[0] == "replace")

    def _can_be_grafted(self, obj: Any) -> bool:
        kind = type(obj)
        known = self._grafts.get(kind)
        if known is None:
            known = self._grafts[kind] = hasattr(obj, "__dict__") and not has_hidden_fields(kind)
        return known


class DecimalContextKind(Kind):
    """Precision, rounding, flags and so on, all of which can be set."""

    name = "decimal context"
    blind = True
    changes = True

    def read(self, obj: Any) -> State:
        _, (*numbers, flags, traps) = obj.__reduce__()
        return (*numbers, *map(tuple, (flags, traps)))

    def apply(self, obj: Any, content: Any) -> None:
        *numbers, flags, traps = content
        for name, value in zip(("prec", "rounding", "Emin", "Emax", "capitals", "clamp"), numbers, strict=True):
            setattr(obj, name, value)
        for signals, on in ((obj.flags, flags), (obj.traps, traps)):
            for signal in signals:
                signals[signal] = signal in on


def reduced_form(obj: Any) -> ReducedForm:
    own = copyreg.dispatch_table.get(type(obj))
    form = own(obj) if own is not None else reduced_ordinarily(obj)
    if isinstance(form, str):
        return None
    function, arguments, state, items, pairs = (*form, None, None, None)[:5]
    return function, arguments, state, list(items or ()), list(pairs or ())


def _unshared(state: Any, own: Any) -> Any:
    """The state with a copy in place of the object's own dict, because the other end's object has one, too."""
    if type(state) is tuple:
        parts = [_unshared(part, own) for part in state]
        return state if all(map(is_, parts, state)) else tuple(parts)
    return dict(own) if state is own and type(own) is dict else state


def is_of_class_alone(form: Any) -> bool:
    """Whether the constructor needs only the class, which can be assigned to an object."""
    return form[0] is _NEW and len(form[1]) == 1


def attributes_in(state: Any) -> dict[str, Any]:
    """The part of a reduced state that usually holds the attributes."""
    return next((part for part in (state if type(state) is tuple else (state,)) if type(part) is dict), {})


def has_hidden_fields(kind: type) -> bool:
    """A class with fields in C, outside `__dict__` and slots, cannot be grafted. Heap-type flags do not show this."""
    base: Any = next((base for base in (*CONTAINERS, BaseException) if issubclass(kind, base)), object)
    pointers = (kind.__dictoffset__ != 0) + (kind.__weakrefoffset__ != 0) + len(slot_names(kind))
    return bool(kind.__basicsize__ > base.__basicsize__ + struct.calcsize("P") * pointers)


class Frozen(tuple):  # type: ignore[type-arg]
    """The contents of a list, tuple or dict inside a reduced form."""


def frozen(form: Iterable[Any], own: Any, depth: int = _DEPTH) -> Frozen:
    """A container that lives on is compared by identity *and* contents.

    It has a state of its own, but objects that are rebuilt from it on the other side may have copied it. A container
    that exists only for this reduction, or is the object's own dict, is compared by contents alone.
    """
    parts = []
    for part in form:
        if type(part) in (list, tuple, dict) and depth:
            lives_on = part is not own and sys.getrefcount(part) > _HELD_ONCE
            if type(part) is dict:
                contents = Frozen((Frozen(part), frozen(part.values(), own, depth - 1)))
            else:
                contents = frozen(part, own, depth - 1)
            parts.append(Frozen((part, contents)) if lives_on else contents)
        else:
            parts.append(part)
    return Frozen(parts)


def _held_once() -> int:
    """The reference count that `frozen` sees for an object that only its container holds."""
    return next(sys.getrefcount(part) for part in (list[Any](),))


_HELD_ONCE = _held_once()


def same_form(now: Any, old: Any) -> bool:
    """Like `alike`, but arrays that each reduction creates anew are equal if their bytes are."""
    if now is old:
        return True
    if type(now) is type(old) and isinstance(now, tuple):
        return len(now) == len(old) and all(map(same_form, now, old))
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(now) is type(old) is numpy.ndarray:
        if now.dtype != old.dtype or now.shape != old.shape or now.strides != old.strides or now.dtype.hasobject:
            return False
        if not now.flags.c_contiguous and not now.flags.f_contiguous:
            return False
        return bool(
            memoryview(now.reshape(-1, order="A").view("u1")) == memoryview(old.reshape(-1, order="A").view("u1"))
        )
    return alike(now, old)


def inside(value: Any) -> list[Any]:
    """The parts, in no particular order."""
    found: list[Any] = []
    waiting = [(value,)]
    while waiting:
        for part in waiting.pop():
            if type(part) is Frozen:
                waiting.append(part)
            else:
                found.append(part)
    return found


def build(form: tuple[Any, ...]) -> Any:
    function, arguments, state, items, pairs = form
    twin = function(*arguments)
    if state is not None and hasattr(twin, "__setstate__"):
        twin.__setstate__(state)
    elif state is not None:
        attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
        twin.__dict__.update(attributes or {})
        for name, value in (slots or {}).items():
            setattr(twin, name, value)
    for item in items:
        twin.append(item)
    for key, value in pairs:
        twin[key] = value
    return twin


def graft(obj: Any, twin: Any) -> None:
    """Gives the object the contents of its twin, without calling code of the object's class on the object itself."""
    if container_base(obj) is not None:
        fill(obj, contents_of(twin))
    for name in slot_names(type(obj)):
        if hasattr(twin, name):
            object.__setattr__(obj, name, getattr(twin, name))
    obj.__dict__.clear()
    obj.__dict__.update(twin.__dict__)
