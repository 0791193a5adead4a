"""Changes to a library that can be undone."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

_MISSING = object()


class Patches:
    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Sets the attribute. A replacement gets the original's name, so it is sent as the function of that name."""
        before = vars(owner).get(name, _MISSING)
        if isinstance(value, types.FunctionType) and callable(before):
            for detail in ("__module__", "__name__", "__qualname__", "__doc__"):
                setattr(value, detail, getattr(before, detail, getattr(value, detail)))
        setattr(owner, name, value)
        self.on_undo(lambda: delattr(owner, name) if before is _MISSING else setattr(owner, name, before))

    def on_undo(self, action: Callable[[], None]) -> None:
        self._undo.append(action)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()
