"""The label of things on the virtual GPU, and whether anything has it at present.

All labelled tensors refer to one `Label` object, and nothing else does. So Python frees it together with the last such
tensor, even if only C++ code held that tensor. Listeners are called when the object is created and when it is freed,
because some changes to libraries are needed only while a tensor is on the virtual GPU.

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
    """Whether the label exists, and what to call when that changes."""

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
