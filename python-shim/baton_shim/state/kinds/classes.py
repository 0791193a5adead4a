"""Classes of the notebook, where cloudpickle loses something when it rebuilds them.

* The qualified name within a class or function: `Outer.Inner`.
* Slots: without them the instances would get a `__dict__`.
* `typing.NamedTuple` is a function, not a class; its result is an ordinary subclass of `tuple`.
* `__init_subclass__` and metaclasses of the notebook: they have already run, and what they count or register is sent
  itself. Running them again would do it twice.
* Members of an enumeration: aliases, and attributes that `__init__` or a cell gave them.
"""

from __future__ import annotations

import contextlib
import copyreg
import ctypes
import enum
import functools
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any

import cloudpickle

from baton_shim.state.kinds.base import Kind, State

CLASS_INTERNALS = frozenset(
    "__dict__ __weakref__ __doc__ __module__ __qualname__ _abc_impl __abstractmethods__ __static_attributes__ "
    "__firstlineno__ __slotnames__ __annotate_func__ __annotations_cache__".split()
)
_OF_MEMBERS = frozenset("_value_ _name_ __objclass__ _sort_order_ _inverted_".split())
_OF_ENUMERATIONS = (CLASS_INTERNALS - {"__doc__"}) | frozenset(
    "__new__ __new_member__ _new_member_ _generate_next_value_ _use_args_ _member_type_ _member_names_ _member_map_ "
    "_value2member_map_ _hashable_values_ _unhashable_values_ _unhashable_values_map_ _value_repr_ _flag_mask_ "
    "_singles_mask_ _all_bits_ _boundary_ _inverted_".split()
)
"""What `enum` itself sets when it creates the class."""

_OF_THE_CLASS_ITSELF = {"__class__", "__name__"}


def class_form(form: Any, kind: Any) -> Any:
    """Completes cloudpickle's reduced form of a class."""
    if type(form) is not tuple or len(form) != 6:
        return form
    if issubclass(kind, enum.Enum):
        return _of_enumeration(form, kind)
    function, (metaclass, name, bases, keywords, tracked, extra), (attributes, slot_state), *_ = form
    keywords = {**keywords, "__qualname__": kind.__qualname__}
    if typing.NamedTuple in vars(kind).get("__orig_bases__", ()):
        bases = kind.__bases__
    for attribute, value in vars(kind).items():  # also attributes that are the same object as in a base
        if attribute not in attributes and any(vars(base).get(attribute, kind) is value for base in kind.__mro__[1:]):
            attributes[attribute] = value
    if issubclass(kind, (ctypes.Structure, ctypes.Union)):
        for field in vars(kind).get("_fields_", ()):  # `_fields_` creates the class's attributes of these names
            attributes.pop(field[0], None)
    slots = vars(kind).get("__slots__")
    if slots is not None:
        keywords = {**keywords, "__slots__": slots}
        for slot in copyreg._slotnames(kind):  # type: ignore[attr-defined]
            attributes.pop(slot, None)
    for attribute in _OF_THE_CLASS_ITSELF & attributes.keys():  # set later, each would be the class's own attribute
        keywords = {**keywords, attribute: attributes.pop(attribute)}
    arguments = metaclass, name, bases, keywords, tracked, extra
    if metaclass.__module__ == "__main__":
        return skeleton, arguments, (attributes, slot_state), None, None, set_class
    own = any(_with_own_hook(kind.__mro__[1:]))
    setter = (
        set_class_with_properties
        if any(issubclass(type(value), property) for value in attributes.values())
        else form[5]
    )
    return skeleton if own else function, arguments, (attributes, slot_state), None, None, setter


def skeleton(metaclass: Any, name: str, bases: Any, keywords: dict[str, Any], tracked: Any, _: Any) -> Any:
    """Like cloudpickle's function, without running code of the notebook."""
    library = next(kind for kind in metaclass.__mro__ if kind.__module__ != "__main__")

    def make(name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        if library is metaclass:
            return metaclass(name, bases, namespace)
        made = library.__new__(metaclass, name, bases, namespace)
        library.__init__(made, name, bases, namespace)
        return made

    with _hooks_of_the_notebook_passed_over(bases):
        kind = types.new_class(name, bases, {"metaclass": make}, lambda namespace: namespace.update(keywords))
    return cloudpickle.cloudpickle._lookup_class_or_track(tracked, kind)


def _with_own_hook(kinds: Iterable[Any]) -> Iterator[Any]:
    return (kind for kind in kinds if kind.__module__ == "__main__" and "__init_subclass__" in vars(kind))


@contextlib.contextmanager
def _hooks_of_the_notebook_passed_over(bases: tuple[Any, ...]) -> Iterator[None]:
    """Skips the notebook's `__init_subclass__`. Those of libraries run, because each process has its own registers."""
    mros = (kind.__mro__ for kind in types.resolve_bases(bases))
    hooks = {kind: vars(kind)["__init_subclass__"] for mro in mros for kind in _with_own_hook(mro)}
    try:
        for kind in hooks:
            type.__setattr__(kind, "__init_subclass__", classmethod(functools.partial(_next_hook, kind)))
        yield
    finally:
        for kind, hook in hooks.items():
            type.__setattr__(kind, "__init_subclass__", hook)


def _next_hook(owner: Any, kind: Any) -> None:
    super(owner, kind).__init_subclass__()


def set_class(kind: Any, state: Any) -> Any:
    """Like cloudpickle's function, but bypasses a metaclass's `__setattr__`."""
    attributes, _ = state
    for name, value in attributes.items():
        if name != "_abc_impl":
            type.__setattr__(kind, name, value)
    for registered in attributes.get("_abc_impl", ()):
        kind.register(registered)
    return name_properties(kind, attributes)


def set_class_with_properties(kind: Any, state: Any) -> Any:
    cloudpickle.cloudpickle._class_setstate(kind, state)
    return name_properties(kind, state[0])


def name_properties(kind: Any, attributes: dict[str, Any]) -> Any:
    """Gives properties the names that their errors show, which they usually learn when the class is created."""
    for name, value in attributes.items():
        if issubclass(type(value), property):
            property.__set_name__(value, kind, name)  # type: ignore[attr-defined]
    return kind


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
    """The attributes that enum did not set itself."""
    return tuple((name, value) for name, value in vars(member).items() if name not in _OF_MEMBERS)


def set_enumeration(kind: Any, state: Any) -> Any:
    ordinary, own = state
    cloudpickle.cloudpickle._class_setstate(kind, ordinary)
    for name, attributes in own.items():
        vars(kind.__members__[name]).update(attributes)
    return kind


def enumeration_state(kind: Any) -> tuple[Any, ...]:
    """What may change: attributes that are not members, and attributes of the members."""
    own = ((name, value) for name, value in vars(kind).items() if is_own(kind, name))
    return tuple(own), tuple((name, own_attributes(member)) for name, member in kind.__members__.items())


def is_own(kind: Any, name: str) -> bool:
    return name not in _OF_ENUMERATIONS and name not in kind.__members__


def update_enumeration(kind: Any, own: Iterable[tuple[str, Any]], members: Iterable[tuple[str, Any]]) -> None:
    attributes = dict(own)
    for name in [name for name in vars(kind) if is_own(kind, name) and name not in attributes]:
        type.__delattr__(kind, name)
    for name, value in attributes.items():
        if vars(kind).get(name) is not value:
            type.__setattr__(kind, name, value)
    for name, values in members:
        set_own_attributes(kind.__members__[name], values)


def set_own_attributes(member: Any, values: Iterable[tuple[str, Any]]) -> None:
    attributes = vars(member)
    for name, _ in own_attributes(member):
        del attributes[name]
    attributes.update(values)


def is_member_type(kind: type) -> bool:
    return issubclass(kind, enum.Enum) and kind.__module__ == "__main__"


class MemberKind(Kind):
    """A member of an enumeration of the notebook. It is found by its value, and may have attributes."""

    name = "member"
    changes = True

    def read(self, obj: Any) -> State:
        return own_attributes(obj)

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        yield type(obj)
        yield from (value for _, value in state)

    def apply(self, obj: Any, content: Any) -> None:
        set_own_attributes(obj, content)
