"""The handle of a cell, or of a call of an `@gpu` function, that runs in the background.

**Invariant:** imports only the standard library, because student code imports it through the package `baton`.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol


class Keeper(Protocol):
    """What runs the job."""

    def wait_for(self, job: Job, timeout: float | None) -> None:
        """Returns when the job has ended, or after `timeout` seconds."""

    def cancel(self, job: Job) -> None: ...


# Not an attribute, so that code that uses a handle does not also use its keeper.
_KEEPERS: weakref.WeakKeyDictionary[Job, Keeper] = weakref.WeakKeyDictionary()


class Job:
    """A cell under `%%gpu --background job`, or a call `f.background(...)` of an `@gpu` function, that runs in the
    background.

    `result()` waits for it and returns the value of the cell's last line or of the call, or raises its error.
    """

    def __init__(self, number: int, unit: str = "cell") -> None:
        self.number, self.unit = number, unit
        """The `In[number]` of its cell, and whether it is that cell or a call in it."""
        self.status = "waiting"
        """`waiting` for earlier background cells, `running` or queued for a GPU, `done`, `failed` or `cancelled`."""
        self._ended = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        place = "" if self.unit == "cell" else "of "
        return f"<background {self.unit} {place}In[{self.number}]: {self.status}>"

    def __reduce__(self) -> Any:
        raise TypeError("the handle of a background cell stays in the notebook; use job.result() in an ordinary cell")

    def done(self) -> bool:
        """Whether it has ended, and its changes are in the notebook."""
        return self._ended.is_set()

    def result(self, timeout: float | None = None) -> Any:
        """The value of the cell's last line or of the call, once its changes are in the notebook. Raises its error.

        Raises TimeoutError after `timeout` seconds, and KeyboardInterrupt when it is interrupted; the background cell
        continues in both cases.
        """
        self._wait(timeout)
        if self._error is not None:
            raise self._error
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Its error, or None; waits as `result` does."""
        self._wait(timeout)
        return self._error

    def cancel(self) -> None:
        """Interrupts it. What it has changed so far is applied, as with a cell in the foreground."""
        if (keeper := _KEEPERS.get(self)) is not None:
            keeper.cancel(self)

    def attach(self, keeper: Keeper) -> None:
        _KEEPERS[self] = keeper

    def ends(self, value: Any, error: BaseException | None) -> None:
        self._value, self._error = value, error
        self.status = "done" if error is None else "cancelled" if isinstance(error, KeyboardInterrupt) else "failed"
        _KEEPERS.pop(self, None)
        self._ended.set()

    def wait_in_thread(self, timeout: float | None = None) -> None:
        """Returns when the main thread has noticed its end, or after `timeout` seconds."""
        self._ended.wait(timeout)

    def _wait(self, timeout: float | None) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.wait_in_thread(timeout)
        elif (keeper := _KEEPERS.get(self)) is not None:
            keeper.wait_for(self, timeout)
        if not self.done():
            raise TimeoutError(f"In[{self.number}] has not ended within {timeout:g} seconds; it keeps running")


def held_by(obj: object) -> tuple[object, ...] | None:
    """What a handle holds; None if `obj` is not a handle."""
    return (obj._value, obj._error) if isinstance(obj, Job) else None
