"""Sends a page the state of all widgets although a part of one stayed in the session.

After a reload, a page requests the states of all widgets at once, in one message. A stand-in cannot be written into it.

**Invariant:** only for the whole state of a widget. A program that sends or reads such a part itself gets the error.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from baton_shim.base import late
from baton_shim.state.refusal import StandIn, StandInError

MODULE = "ipywidgets.widgets.widget"


def send_what_is_here() -> None:
    """Called before the first `%%gpu` cell of a notebook: only from then on there are stand-ins."""
    if MODULE in sys.modules:
        wrap_get_state()
    else:
        late.when_imported(MODULE, wrap_get_state)


def wrap_get_state() -> None:
    widget: Any = sys.modules[MODULE].Widget
    whole = widget.get_state

    @functools.wraps(whole)
    def get_state(self: Any, key: Any = None, drop_defaults: bool = False) -> Any:
        if key is not None:
            return whole(self, key, drop_defaults)
        try:
            state = whole(self, None, drop_defaults)
        except StandInError:
            state = {}
            for one in self.keys:
                state.update(part_of(one, functools.partial(whole, self, one, drop_defaults)))
        return {name: value for name, value in state.items() if not holds_stand_in(value)}

    widget.get_state = get_state


def part_of(key: str, get: Any) -> Any:
    """A trait's part of the state; nothing if it is not here."""
    try:
        return get()
    except StandInError:
        return {}


def holds_stand_in(value: Any) -> bool:
    """Whether there is a stand-in where the state's message would be searched for values and buffers."""
    kind = type(value)
    if kind is dict:
        return any(map(holds_stand_in, value.values()))
    return any(map(holds_stand_in, value)) if kind in (list, tuple) else kind is StandIn
