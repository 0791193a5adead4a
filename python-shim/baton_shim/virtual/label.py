"""The label that says of a thing that it is on the virtual GPU, and whether anything has it at present.

All that have the label share one object, and it is kept by them alone. So it ends with the last of them, also where C++
alone holds that; what has to be there only while something is on the GPU hears of the first label and of the end.

**Invariant:** nothing of a library is imported here.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

LABEL = "_baton_cuda"
"""The attribute of a tensor that is on the virtual GPU; a `Label`, or not there."""


class Label:
    """True, and never a second one."""

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
        """The label, for what is on the GPU from now on."""
        found = self._present()
        if found is None:
            found = Label()
            self._present = weakref.ref(found, self._ended)
            self._tell()
        return found

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call this after the first label was made and after the last one is gone. Returns what ends it."""
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    def _ended(self, reference: object, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing() and self._present() is None:
            self._tell()

    def _tell(self) -> None:
        for changed in self._listeners:
            changed()


def _none() -> None:
    return None


LABELS = Labels()
label = LABELS.get
