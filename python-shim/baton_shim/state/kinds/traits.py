"""Objects of traitlets: widgets, configurables. Their own pickling drops their observers."""

from __future__ import annotations

import copyreg
import functools
import itertools
from typing import Any

from baton_shim.state.kinds.base import imported
from baton_shim.state.kinds.reduced import ReducedForm, ReducedKind, reduced_form

Handlers = dict[Any, dict[Any, list[Any]]]
"""By trait name (None: all traits) and type of notification."""


class TraitsKind(ReducedKind):
    name = "traits"

    def form(self, obj: Any) -> ReducedForm:
        form = reduced_form(obj)
        if form is None or type(form[2]) is not dict:
            return form
        return form[0], form[1], (form[2], observers(obj)), form[3], form[4]

    def reduce(self, obj: Any) -> Any:
        form = self.form(obj)
        if form is None or type(form[2]) is not tuple:
            return None
        return form[0], form[1], form[2], None, None, set_state

    def apply(self, obj: Any, content: Any) -> None:
        set_state(obj, content[1])


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


@functools.lru_cache(maxsize=4096)
def declared(kind: type) -> tuple[Any, ...]:
    """Handlers that its class declares and `__setstate__` attaches. Finding them reads all attributes, each time."""
    from traitlets.traitlets import EventHandler

    found = (vars(base).items() for base in kind.__mro__[::-1])
    named = dict(itertools.chain.from_iterable(found))
    return tuple(named[name] for name in sorted(named) if isinstance(named[name], EventHandler))


def set_state(obj: Any, content: tuple[dict[str, Any], Handlers]) -> None:
    from traitlets.traitlets import All

    state, added = content
    obj.__dict__ = state.copy()
    kind: Any = type(obj)
    for handler in declared(kind):
        handler.instance_init(obj)
    for name, by_type in added.items():
        for notification, handlers in by_type.items():
            obj._trait_notifiers.setdefault(All if name is None else name, {}).setdefault(notification, []).extend(
                handlers
            )
