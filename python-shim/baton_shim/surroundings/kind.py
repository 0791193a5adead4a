"""One kind of setting: a row of a table. And how differences of dictionaries and lists are written.

A row says which module it is about, how to read the setting, how to set it, and how it is in a process that has
just imported the module.

**Invariant:** reading changes nothing, imports nothing, and gives something that compares by value and does not change
afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

Troubles = list[str] | None
"""Lines for what could not be done."""


AS_NOW: Any = object()


class Kind(NamedTuple):
    name: str
    title: str
    """What it is, for a warning."""
    module: str
    """It must have been imported, and is the first argument of all functions."""
    get: Callable[[Any], Any]
    set: Callable[[Any, Any], Troubles]
    """Takes a difference."""
    fresh: Any = AS_NOW
    """The value in a process that has just imported the module, or a function that finds it; None: not known."""
    difference: Callable[[Any, Any], Any] = lambda before, now: now
    whole: bool = True
    """Whether a difference says everything, so that earlier ones do not matter."""
    found: bool = False
    """Whether a session finds it out by itself: that is news to the notebook although nothing was set."""

    def is_here(self) -> bool:
        return sys.modules.get(self.module) is not None

    def look(self) -> Any:
        """How this process is now."""
        return self.get(sys.modules[self.module])

    def at_first(self) -> Any:
        if self.fresh is AS_NOW:
            return self.look()
        return self.fresh(sys.modules[self.module]) if callable(self.fresh) else self.fresh

    def apply(self, difference: Any) -> Troubles:
        return self.set(sys.modules[self.module], difference)


_MISSING = object()


def changed(before: Mapping[Any, Any], now: Mapping[Any, Any]) -> tuple[dict[Any, Any], list[Any]]:
    """New or changed entries, and names that are gone."""
    new = {name: value for name, value in now.items() if before.get(name, _MISSING) != value}
    return new, [name for name in before if name not in now]


def rows(title: str, module: str, *settings: tuple[Any, ...]) -> tuple[Kind, ...]:
    """Single values, each as its name, how to get it, how to set it, and what it is at first (without: as it is now).
    In place of a function a text names one of the module.
    """
    return tuple(
        Kind(f"{module}.{name}", title, module, function(get), function(set_it), *fresh)
        for name, get, set_it, *fresh in settings
    )


def function(found: Any) -> Callable[..., Any]:
    return (lambda module, *value: getattr(module, found)(*value)) if isinstance(found, str) else found


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
    """A dictionary of independent settings. `set_one` takes the name and value of one; `unset` a name, and makes it
    what it is in a process that has just begun.
    """

    def apply(found: Any, difference: Any) -> list[str]:
        new, gone = difference
        troubles = each(new.items(), lambda entry: set_one(found, *entry), title)
        return troubles + each(gone, lambda name: unset(found, name), title)

    return Kind(name, title, module, get, apply, fresh, difference, whole=False)


def edits(before: Iterable[Hashable], now: Iterable[Hashable]) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """What went out of a list, and what came into it, each with the entry that stands before it (None: the first)."""
    old, new = list(before), list(now)
    kept = set(old)
    present = set(new)
    added = []
    for number, entry in enumerate(new):
        if entry not in kept:
            added.append((entry, new[number - 1] if number else None))
    return [entry for entry in old if entry not in present], added


def edited(here: Iterable[Any], edit: tuple[list[Any], list[tuple[Any, Any]]]) -> list[Any]:
    """The list of this process after the other one's edits."""
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
    """Does it for each; a line for each that fails."""
    troubles = []
    for item in items:
        try:
            act(item)
        except Exception as error:  # whatever a library says of a value that it does not know
            troubles.append(f"{title} {item!r} could not be set ({type(error).__name__}: {error})")
    return troubles
