"""Instances of a class with attributes whose base has none, and pickles itself: `class Money(Decimal)`.

The base's own pickling (`Decimal`, `date`, `Fraction`, `tzinfo`, `random.Random`) does not know of attributes, or calls
the class with arguments that its constructor does not expect. So an instance is sent as what the base's pickling
contains, with its attributes beside it.

**Invariant:** no code of the class runs, only that of the base.
"""

from __future__ import annotations

import contextlib
import copyreg
import random
from collections.abc import Iterator
from typing import Any

from baton_shim.base.local_modules import is_own_module
from baton_shim.state.kinds.base import State
from baton_shim.state.kinds.instances import InstanceKind, container_base, slot_names
from baton_shim.state.kinds.reduced import frozen, inside, same_form

_PICKLING = frozenset(("__reduce_ex__", "__reduce__", "__getstate__"))
_FORGETFUL = (random.Random,)
"""Classes with attributes whose pickling leaves out those of a derived class."""
_NEW = copyreg.__newobj__  # type: ignore[attr-defined]


class ExtendedKind(InstanceKind):
    name = "extended"

    def is_blind(self, obj: Any) -> bool:
        return False

    def reduce(self, obj: Any) -> Any:
        new, apply = self._anchors
        return new, (type(obj), form_in_base(obj)[0]), self.content(obj, None), None, None, apply

    def new(self, kind: Any, arguments: Any) -> Any:
        base = base_of(kind)
        made = base.__new__(kind, *arguments)
        if base.__init__ is not object.__init__:
            base.__init__(made, *arguments)
        return made

    def read(self, obj: Any) -> State:
        return *super().read(obj)[:3], frozen(form_in_base(obj), None)

    def same(self, obj: Any, state: State) -> bool:
        return same_form(self.read(obj), state)

    def content(self, obj: Any, state: State) -> Any:
        return *super().read(obj)[:3], form_in_base(obj)[1]

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        *attributes, form = state
        yield from super().parts(obj, (*attributes, ()))
        yield from inside(form)

    def must_be_replaced(self, obj: Any, old: State) -> bool:
        return not same_form(self.read(obj)[3][0], old[3][0])

    def holds_for_good(self, obj: Any, old: State, identities: set[int]) -> bool:
        return any(id(part) in identities for part in inside(old[3][0]))

    def apply(self, obj: Any, content: Any) -> None:
        *attributes, state = content
        if state is not None:
            base_of(type(obj)).__setstate__(obj, state)
        super().apply(obj, (*attributes, ()))


def form_in_base(obj: Any) -> tuple[Any, Any]:
    """The arguments of the base, and its state; `None` if that consists of the attributes."""
    function, arguments, *state = obj.__reduce_ex__(5)
    return arguments[function is _NEW :], state[0] if state and hasattr(base_of(type(obj)), "__setstate__") else None


def base_of(kind: Any) -> Any:
    """The library's class without attributes."""
    return next(
        base
        for base in kind.__mro__
        if base.__module__ != "__main__" and (not base.__dictoffset__ or base in _FORGETFUL)
    )


def is_students(kind: type) -> bool:
    """Whether the notebook or one of the student's own modules defines the class."""
    return kind.__module__ == "__main__" or is_own_module(kind.__module__)


def is_extended(obj: Any) -> bool:
    kind: Any = type(obj)
    if not is_students(kind):
        return False
    base = base_of(kind)
    pickling = next((one for one in kind.__mro__ if not _PICKLING.isdisjoint(vars(one))), object)
    if base is kind or pickling is object or pickling not in base.__mro__ or kind in copyreg.dispatch_table:
        return False
    if container_base(obj) is not None or (not kind.__dictoffset__ and slot_names(kind) == slot_names(base)):
        return False
    with contextlib.suppress(Exception):  # it cannot be pickled
        function, *_ = obj.__reduce_ex__(5)
        return function in (kind, _NEW) or function.__module__ == "numpy.random._pickle"
    return False
