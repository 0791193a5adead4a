"""The object that each name referred to on both ends, as of the last message.

A name is sent only if it now refers to another object. So if the notebook rebinds a name that the cell does not need,
the session, which still has the old object under that name, does not revert it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from baton_shim.state.kinds.base import ATOMS, alike
from baton_shim.state.numbering import Numbering

_NOWHERE = object()


class _LeftAlone:
    """A name's object that no longer has a number, because the other end has bound the name to another object."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any) -> None:
        self.obj = obj


class Bindings:
    """The names of one table, each with what it referred to at the last message."""

    def __init__(self, namespace: dict[str, Any], numbering: Numbering) -> None:
        self._namespace, self._numbering = namespace, numbering
        self._known: dict[str, Any] = {}  # a plain value, a number in a tuple, or such an object

    def is_known(self, name: str, obj: Any, replaced: set[int]) -> bool:
        """Whether the other end has this very object, or an equal plain value, under this name."""
        known = self._known.get(name, _NOWHERE)
        if type(known) is _LeftAlone:
            return known.obj is obj
        if type(known) is tuple:
            number = self._numbering.number(obj)
            return number == known[0] and number not in replaced
        return known is not _NOWHERE and alike(known, obj)

    def numbers(self) -> set[int]:
        return {known[0] for known in self._known.values() if type(known) is tuple}

    def names_of(self, numbers: Set[int]) -> dict[str, Any]:
        """The names that refer to these objects on both ends."""
        if not numbers:
            return {}
        known = {name: one[0] for name, one in self._known.items() if type(one) is tuple and one[0] in numbers}
        objects = {name: self._numbering.objects[number] for name, number in known.items()}
        return {name: obj for name, obj in objects.items() if self._namespace.get(name, _NOWHERE) is obj}

    def former(self, names: Iterable[str]) -> list[Any]:
        """The objects that both ends had under these names as of the last message."""
        known = (self._known.get(name) for name in names)
        return [self._numbering.objects[one[0]] for one in known if type(one) is tuple]

    def note(self, names: Mapping[str, Any]) -> None:
        for name, obj in names.items():
            number = None if type(obj) in ATOMS else self._numbering.number(obj)
            if number is not None:
                self._known[name] = (number,)
            elif type(obj) in ATOMS:
                self._known[name] = obj
            else:
                self._known.pop(name, None)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._known.pop(name, None)

    def drop(self, numbers: set[int]) -> None:
        """Called before the numbers are dropped."""
        for name, known in tuple(self._known.items()):
            if type(known) is tuple and known[0] in numbers:
                obj = self._numbering.objects[known[0]]
                if self._namespace.get(name, _NOWHERE) is obj:
                    self._known[name] = _LeftAlone(obj)
                else:
                    del self._known[name]

    def known(self) -> dict[str, Any]:
        return dict(self._known)

    def put_back(self, known: dict[str, Any]) -> None:
        """Returns to what was `known`."""
        self._known = known

    def move(self, moved: Mapping[int, int]) -> None:
        """Applies the new numbers of a compacted table."""
        for name, known in self._known.items():
            if type(known) is tuple:
                self._known[name] = (moved[known[0]],)
