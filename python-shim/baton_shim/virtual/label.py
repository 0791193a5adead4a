"""The label of things on the virtual GPU, and whether anything has it at present.

All labelled things share one object, which only they keep alive. So it ends with the last of them, even if only C++
refers to that. Listeners are notified of the first label and of its end, because some changes are needed only while
something is on the GPU.

**Invariant:** imports no library.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

LABEL = "_baton_cuda"
"""The attribute of a tensor that is on the virtual GPU: a `Label`, or absent."""


class Label:
    """The label; at most one exists at a time."""

    __slots__ = ("__weakref__",)

    def __reduce__(self) -> Any:
        return label, ()


class Labels:
    def __init__(self) -> None:
        self._present: Callable[[], Label | None] = _none
        self._listeners: list[Callable[[], None]] = []

    @property
    def present(self) -> bool:
        """Whether anything has the label."""
        return self._present() is not None

    def get(self) -> Label:
        """The label, for something that is on the GPU from now on."""
        found = self._present()
        if found is None:
            found = Label()
            self._present = weakref.ref(found, self._ended)
            self._notify()
        return found

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls `changed` after the first label is created and the last one is gone. Returns a function to stop it."""
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    def _ended(self, reference: object, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing() and self._present() is None:
            self._notify()

    def _notify(self) -> None:
        for changed in self._listeners:
            changed()


def _none() -> None:
    return None


LABELS = Labels()
label = LABELS.get
