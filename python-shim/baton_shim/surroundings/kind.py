"""One kind of surrounding, how differences of dictionaries and lists are written.

**Invariant:** `look` changes nothing, imports nothing, and returns something that compares by value and does not
change afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any


class Kind:
    name = ""
    title = ""
    """What it is, for a warning."""
    module = ""
    """The library that must have been imported; empty for a part of Python itself."""
    whole = False
    """A difference says everything; earlier ones do not matter."""

    def is_here(self) -> bool:
        return not self.module or sys.modules.get(self.module) is not None

    def look(self) -> Any:
        """How this process is now."""
        raise NotImplementedError

    def fresh(self) -> Any:
        """How a process is that has just begun, or has just imported the library."""
        return self.look()

    def difference(self, before: Any, now: Any) -> Any:
        return now

    def apply(self, difference: Any) -> list[str] | None:
        """Lines for what could not be done."""
        raise NotImplementedError


class Settings(Kind):
    """A kind whose state is a dictionary of independent settings."""

    def difference(self, before: Any, now: Any) -> Any:
        return changed(before, now)

    def apply(self, difference: Any) -> list[str] | None:
        new, gone = difference
        for name, value in new.items():
            self.set(name, value)
        for name in gone:
            self.unset(name)
        return None

    def set(self, name: Any, value: Any) -> None:
        raise NotImplementedError

    def unset(self, name: Any) -> None:
        """Back to what it is in a process that has just begun."""


_MISSING = object()


def changed(before: Mapping[Any, Any], now: Mapping[Any, Any]) -> tuple[dict[Any, Any], list[Any]]:
    """New or changed entries, and names that are gone."""
    new = {name: value for name, value in now.items() if before.get(name, _MISSING) != value}
    return new, [name for name in before if name not in now]


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


def each(items: Iterable[Any], act: Callable[[Any], None], title: str) -> list[str]:
    """Does it for each; a line for each that fails."""
    troubles = []
    for item in items:
        try:
            act(item)
        except Exception as error:  # whatever a library says of a value that it does not know
            troubles.append(f"{title} {item!r} could not be set ({type(error).__name__}: {error})")
    return troubles
