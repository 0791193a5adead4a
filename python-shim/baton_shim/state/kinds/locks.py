"""Locks. A lock that the cell's own thread holds is held in the other kernel, too."""

from __future__ import annotations

import _thread
import threading
from typing import Any

from baton_shim.base.locks import times_held
from baton_shim.state.kinds.base import Here, Kind, State


class LockKind(Kind):
    name = "lock"
    blind = True
    changes = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new, self.apply)

    def reduce(self, obj: Any) -> Any:
        return self._anchors[0], (type(obj) is _thread.RLock,), self.read(obj), None, None, self._anchors[1]

    def new(self, reentrant: bool) -> Any:
        return threading.RLock() if reentrant else threading.Lock()

    def read(self, obj: Any) -> State:
        return times_held(obj)

    def apply(self, obj: Any, content: int) -> None:
        more = content - times_held(obj)
        for _ in range(more):
            obj.acquire(blocking=False)
        for _ in range(-more):
            obj.release()
