"""Classes of the notebook, where cloudpickle's way of making them anew loses something.

* Slots: without them the instances have a `__dict__` that they had not.
* `typing.NamedTuple` is no class but a function that makes one; what it made is an ordinary subclass of `tuple`.
* Members of an enumeration: a second name for one, and the attributes that `__init__` or a cell gave them.
"""

from __future__ import annotations

import copyreg
import enum
import typing
from collections.abc import Iterator
from typing import Any

import cloudpickle

from baton_shim.state.kinds.base import Kind, State

_OF_ENUM = frozenset("_value_ _name_ __objclass__ _sort_order_ _inverted_".split())


def class_form(form: Any, kind: Any) -> Any:
    """What cloudpickle says of a class, completed."""
    if type(form) is not tuple or len(form) != 6:
        return form
    if issubclass(kind, enum.Enum):
        return _of_enumeration(form, kind)
    function, (metaclass, name, bases, keywords, tracked, extra), (attributes, slot_state), *_ = form
    if typing.NamedTuple in vars(kind).get("__orig_bases__", ()):
        bases = kind.__bases__
    for attribute, value in vars(kind).items():  # the same object as the base's, and yet this class's own
        if attribute not in attributes and any(vars(base).get(attribute, kind) is value for base in kind.__mro__[1:]):
            attributes[attribute] = value
    slots = vars(kind).get("__slots__")
    if slots is not None:
        keywords = {**keywords, "__slots__": slots}
        for slot in copyreg._slotnames(kind):  # type: ignore[attr-defined]
            attributes.pop(slot, None)
    return function, (metaclass, name, bases, keywords, tracked, extra), (attributes, slot_state), *form[3:]


def _of_enumeration(form: Any, kind: Any) -> Any:
    function, (bases, name, qualified, _, *rest), (attributes, slot_state), *_ = form
    values = {name: member.value for name, member in kind.__members__.items()}
    attributes = {name: value for name, value in attributes.items() if name not in kind.__members__}
    own = {name: dict(own_attributes(member)) for name, member in kind.__members__.items()}
    return (
        function,
        (bases, name, qualified, values, *rest),
        ((attributes, slot_state), own),
        None,
        None,
        set_enumeration,
    )


def own_attributes(member: Any) -> tuple[tuple[str, Any], ...]:
    """Those that are not enum's own work."""
    return tuple((name, value) for name, value in vars(member).items() if name not in _OF_ENUM)


def set_enumeration(kind: Any, state: Any) -> Any:
    ordinary, own = state
    cloudpickle.cloudpickle._class_setstate(kind, ordinary)
    for name, attributes in own.items():
        vars(kind.__members__[name]).update(attributes)
    return kind


class MemberKind(Kind):
    """A member of an enumeration of the notebook. It is found by its value, and may get attributes."""

    name = "member"
    changes = True

    def read(self, obj: Any) -> State:
        return own_attributes(obj)

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        yield type(obj)
        yield from (value for _, value in state)

    def apply(self, obj: Any, content: Any) -> None:
        attributes = vars(obj)
        for name, _ in own_attributes(obj):
            del attributes[name]
        attributes.update(content)
