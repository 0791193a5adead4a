"""One kind of setting: a row of a table. And how differences of dictionaries and lists are represented.

A row says which module the setting belongs to, how to read it, how to set it, and its value in a process that has
only imported the module.

**Invariant:** reading changes nothing, imports nothing, and returns an object that compares by value and does not
change afterwards.
"""

from __future__ import annotations

import collections
import copy
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

Troubles = list[str] | None
"""A line for each thing that could not be done."""


AS_NOW: Any = object()


class Kind(NamedTuple):
    name: str
    title: str
    """What warnings call it."""
    module: str
    """Must have been imported; it is the first argument of all functions."""
    get: Callable[[Any], Any]
    set: Callable[[Any, Any], Troubles]
    """Applies a difference."""
    fresh: Any = AS_NOW
    """The value after importing the module, or a function that returns it; None: unknown."""
    difference: Callable[[Any, Any], Any] = lambda before, now: now
    whole: bool = True
    """Whether a difference is complete, so that earlier ones do not matter."""
    found: bool = False
    """Whether a session detects the value itself: then it is new to the notebook although it was not set."""

    def is_here(self) -> bool:
        return sys.modules.get(self.module) is not None

    def look(self) -> Any:
        """The current value in this process."""
        return frozen(self.get(sys.modules[self.module]))

    def at_first(self) -> Any:
        if self.fresh is AS_NOW:
            return self.look()
        return frozen(self.fresh(sys.modules[self.module]) if callable(self.fresh) else self.fresh)

    def apply(self, difference: Any) -> Troubles:
        return self.set(sys.modules[self.module], difference)


def frozen(value: Any) -> Any:
    """A copy of containers in containers, which later changes in place do not reach."""
    kind = type(value)
    if kind in _PLAIN or (kind is tuple and _PLAIN.issuperset(map(type, value))):
        return value
    if kind is dict:
        return {name: one if type(one) in _PLAIN else frozen(one) for name, one in value.items()}
    if kind is list or kind is tuple:
        return kind([one if type(one) in _PLAIN else frozen(one) for one in value])
    return copy.copy(value) if isinstance(value, _CONTAINERS) else value


_PLAIN = frozenset((int, float, complex, bool, str, bytes, type(None)))  # the state of a generator has many numbers
_CONTAINERS = (dict, list, set, bytearray, collections.deque)
_MISSING = object()


def changed(before: Mapping[Any, Any], now: Mapping[Any, Any]) -> tuple[dict[Any, Any], list[Any]]:
    """New or changed entries, and names that have been removed."""
    new = {name: value for name, value in now.items() if before.get(name, _MISSING) != value}
    return new, [name for name in before if name not in now]


def rows(title: str, module: str, *settings: tuple[Any, ...]) -> tuple[Kind, ...]:
    """Single values. Each is a name, a getter, a setter, and the initial value (default: the current value).

    A text in place of a function names a function of the module.
    """
    return tuple(
        Kind(f"{module}.{name}", title, module, getter(get), setter(set_it), *fresh)
        for name, get, set_it, *fresh in settings
    )


def getter(found: Any) -> Callable[[Any], Any]:
    return (lambda module: getattr(module, found)()) if isinstance(found, str) else found


def setter(found: Any) -> Callable[[Any, Any], Troubles]:
    def call(module: Any, value: Any) -> None:
        getattr(module, found)(value)  # what it returns is no trouble: `torch.set_grad_enabled` is a class

    return call if isinstance(found, str) else found


def entries(
    name: str,
    title: str,
    module: str,
    get: Callable[[Any], Any],
    set_one: Callable[[Any, Any, Any], object],
    unset: Callable[[Any, Any], object] = lambda module, name: None,
    *,
    fresh: Any = AS_NOW,
    difference: Callable[[Any, Any], Any] = changed,
) -> Kind:
    """A dictionary of independent settings.

    `set_one` takes the name and value of one setting. `unset` takes a name and restores the value of a new process.
    """

    def apply(found: Any, difference: Any) -> list[str]:
        new, gone = difference
        troubles = each(new.items(), lambda entry: set_one(found, *entry), title)
        return troubles + each(gone, lambda name: unset(found, name), title)

    return Kind(name, title, module, get, apply, fresh, difference, whole=False)


def edits(before: Iterable[Hashable], now: Iterable[Hashable]) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """What was removed from a list, and what was added or moved, each with the entry before it (None: it is the first).

    Most entries that are added or moved become the first, as in `warnings.filterwarnings`.
    """
    old, new = list(before), list(now)
    place = {entry: number for number, entry in enumerate(old)}
    present = set(new)
    added = []
    following = len(old)
    for number, entry in reversed([*enumerate(new)]):
        if place.get(entry, following) < following:
            following = place[entry]
        else:
            added.append((entry, new[number - 1] if number else None))
    return [entry for entry in old if entry not in present], added[::-1]


def edited(here: Iterable[Any], edit: tuple[list[Any], list[tuple[Any, Any]]]) -> list[Any]:
    """The list of this process after the edits of the other process."""
    gone, added = edit
    result = [entry for entry in here if entry not in gone]
    for entry, before in added:
        if entry in result:
            result.remove(entry)
        if before is None:
            result.insert(0, entry)
        elif before in result:
            result.insert(result.index(before) + 1, entry)
        else:
            result.append(entry)
    return result


def each(items: Iterable[Any], act: Callable[[Any], object], title: str) -> list[str]:
    """Calls `act` for each item; returns a line for each that fails."""
    troubles = []
    for item in items:
        try:
            act(item)
        except Exception as error:  # any error of a library about a value that it does not know
            troubles.append(f"{title} {item!r} could not be set ({type(error).__name__}: {error})")
    return troubles
