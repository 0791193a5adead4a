"""Objects of traitlets: widgets, configurables. Their own pickling drops their observers."""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import is_
from typing import Any

from baton_shim.state.kinds.base import Kind, State, alike, hold_the_same, imported
from baton_shim.state.kinds.instances import reduced_ordinarily

Handlers = dict[Any, dict[Any, list[Any]]]
"""By trait name (None: all traits) and type of notification."""

_OWN = frozenset(("_trait_values", "_trait_notifiers", "_trait_validators"))
"""Dicts that belong to one object. Their contents are part of its state, as far as they are sent."""


class TraitsKind(Kind):
    """Attributes, values of traits and observers.

    A widget consists of several such objects with dozens of values, so many objects are compared at once.
    """

    name = "traits"
    changes = True

    def reduce(self, obj: Any) -> Any:
        function, arguments, state, *_ = reduced_ordinarily(obj)
        return function, arguments, (state, observers(obj)), None, None, set_state

    def read(self, obj: Any) -> State:
        attributes, traits = obj.__dict__, obj._trait_values
        held = tuple(attributes), tuple(attributes.values()), tuple(traits), tuple(traits.values())
        return type(obj), *held, attached(obj)

    def all_same(self, objects: Sequence[Any], states: Sequence[State]) -> bool:
        kinds, names, values, trait_names, trait_values, observed = zip(*states, strict=True)
        attributes = [obj.__dict__ for obj in objects]
        traits = [obj._trait_values for obj in objects]
        return (
            all(map(is_, map(type, objects), kinds))
            and hold_the_same(attributes, names)
            and hold_the_same([held.values() for held in attributes], values)
            and hold_the_same(traits, trait_names)
            and hold_the_same([held.values() for held in traits], trait_values)
            and all(map(alike, map(attached, objects), observed))
        )

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        kind, names, values, _, trait_values, observed = state
        yield kind
        yield from (value for name, value in zip(names, values, strict=True) if name not in _OWN)
        yield from trait_values
        yield from chain.from_iterable(added for _, _, added in observed)

    def content(self, obj: Any, state: State) -> Any:
        return type(obj), obj.__getstate__(), observers(obj)

    def apply(self, obj: Any, content: Any) -> None:
        kind, *state = content
        if type(obj) is not kind:  # traits were added to the object
            obj.__class__ = kind
        set_state(obj, state)


def is_traits_type(kind: Any) -> bool:
    """Whether it uses traitlets' own pickling."""
    base = imported("traitlets.traitlets", "HasTraits")
    if not issubclass(kind, base) or kind in copyreg.dispatch_table:
        return False
    own = (kind.__getstate__, kind.__setstate__, kind.__reduce__, kind.__reduce_ex__)
    return own == (base.__getstate__, base.__setstate__, object.__reduce__, object.__reduce_ex__)


def observers(obj: Any) -> Handlers:
    """Observers that were attached to this object. Those that its class declares exist in every process."""
    from traitlets.traitlets import All, EventHandler

    found: Handlers = {}
    for name, by_type in obj._trait_notifiers.items():
        for kind, handlers in by_type.items():
            added = [handler for handler in handlers if not isinstance(handler, EventHandler)]
            if added:
                found.setdefault(None if name is All else name, {})[kind] = added
    return found


def attached(obj: Any) -> tuple[tuple[Any, Any, tuple[Any, ...]], ...]:
    """The same in a form that can be compared."""
    found = observers(obj)
    return tuple((name, kind, tuple(added)) for name, by_type in found.items() for kind, added in by_type.items())


@functools.lru_cache(maxsize=4096)
def declared(kind: type) -> tuple[Any, ...]:
    """Handlers that its class declares and `__setstate__` attaches. Finding them reads all attributes, each time."""
    from traitlets.traitlets import EventHandler

    found = (vars(base).items() for base in kind.__mro__[::-1])
    named = dict(chain.from_iterable(found))
    return tuple(named[name] for name in sorted(named) if isinstance(named[name], EventHandler))


def set_state(obj: Any, content: Sequence[Any]) -> None:
    """`content`: what `__getstate__` returned, and the observers."""
    from traitlets.traitlets import All

    state, added = content
    obj.__dict__ = state.copy()
    kind: Any = type(obj)
    for handler in declared(kind):
        handler.instance_init(obj)
    for name, by_type in added.items():
        by_name = obj._trait_notifiers.setdefault(All if name is None else name, {})
        for notification, handlers in by_type.items():
            by_name.setdefault(notification, []).extend(handlers)
