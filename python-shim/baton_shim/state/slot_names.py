"""`__slotnames__`, which Python stores in a class when an instance is pickled. `help`, `dir` and `vars` would show it.

**Invariant:** no class of the notebook has it because of a message.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from baton_shim.base.examine import made_in_notebook, of_type


class SlotNames:
    def __init__(self) -> None:
        self._classes: dict[int, weakref.ref[type]] = {}  # by id, because a metaclass may define `__hash__`

    def note(self, objects: Iterable[Any]) -> None:
        """Notes the notebook's classes of these objects."""
        for kind in {id(kind): kind for kind in map(type, objects)}.values():
            if made_in_notebook(kind):
                self._classes[id(kind)] = weakref.ref(kind)

    def remove(self) -> None:
        for number, reference in tuple(self._classes.items()):
            kind = reference()
            if kind is None:
                del self._classes[number]
            elif "__slotnames__" in of_type(kind, "__dict__"):
                type.__delattr__(kind, "__slotnames__")
