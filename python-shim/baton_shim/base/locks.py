"""Which thread holds a lock."""

from __future__ import annotations

import _thread
import re
import threading
from typing import Any

from baton_shim.base.background_work import is_alien

LOCKS = (_thread.LockType, _thread.RLock)
_MOMENT = 0.005  # seconds in which a library's thread releases a lock
_OWNER = re.compile(r" owner=(\d+) count=(\d+) ")


def times_held(lock: Any) -> int:
    """How often this thread has acquired the lock. One that is not reentrant does not say which thread holds it."""
    if type(lock) is _thread.RLock:
        owner, count = map(int, _OWNER.search(repr(lock)).groups())  # type: ignore[union-attr]
        return count if owner == threading.get_ident() else 0
    return int(not free_soon(lock))


def held_by_another_thread(lock: Any) -> bool:
    """Whether another thread holds it or, if it is not reentrant, may hold it."""
    if free_soon(lock):
        return False
    return type(lock) is _thread.RLock or any(map(is_alien, threading.enumerate()))


def free_soon(lock: Any) -> bool:
    """Whether this thread can acquire it now or in a moment."""
    if not lock.acquire(timeout=_MOMENT):
        return False
    lock.release()
    return True
