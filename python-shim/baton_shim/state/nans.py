"""NaN by identity: it equals nothing, but `nan in [nan]` is true, and a dict finds it as a key.

A pickler does not number floats, so NaNs are numbered here, alike on both ends, and sent as persistent ids.

**Invariant:** bounded; further NaNs are sent like any other float.
"""

from __future__ import annotations

import importlib
import math
import sys
from typing import Any

MOST = 1000
_OF_PYTHON, _OF_NUMPY = 0, 1


class Nans:
    """The NaNs that one table has numbered."""

    def __init__(self) -> None:
        self._objects: list[float] = [math.nan, math.nan]
        self._numbers: dict[int, int] = {id(math.nan): _OF_PYTHON}

    def __len__(self) -> int:
        return len(self._objects)

    def number(self, nan: float) -> int | None:
        """Its number; both ends know it after the message."""
        number = self._numbers.get(id(nan))
        if number is not None:
            return number
        if nan is getattr(sys.modules.get("numpy"), "nan", None):
            return _OF_NUMPY
        return self._add(nan) if len(self) < MOST else None

    def find(self, number: int) -> Any:
        if number == _OF_NUMPY:
            return importlib.import_module("numpy").nan
        if number == len(self):
            self._add(float("nan"))
        return self._objects[number]

    def _add(self, nan: float) -> int:
        self._numbers[id(nan)] = len(self)
        self._objects.append(nan)
        return len(self) - 1

    def forget(self, count: int) -> None:
        """Drops the numbers from `count` on, because their message is not sent."""
        for nan in self._objects[count:]:
            del self._numbers[id(nan)]
        del self._objects[count:]
