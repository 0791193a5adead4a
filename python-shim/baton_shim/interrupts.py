"""SIGINT as a fact to look at instead of an exception that may strike between any two instructions.

A KeyboardInterrupt in the middle of a frame would lose bytes, in the middle of an apply half of a change. So a call
holds interrupts while it runs: they are counted, and wake the wait. Only where a student's own code (or a prompt of
Jupyter) runs, they raise as usual. In ordinary cells they always do, but never in the middle of a message.

**Invariant:** outside of `raising`, no KeyboardInterrupt is raised while interrupts are held.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jupyter_client.session import Session


class Interrupts:
    """Holds SIGINT from `__enter__` to `__exit__`. In a thread that gets no signals it does nothing."""

    count: int
    """How many interrupts have been held."""

    def __init__(self) -> None:
        self.count = 0
        self._previous: Callable[[int, FrameType | None], object] | int | None = None
        self._installed = False
        self.wake, self._alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Interrupts:
        try:
            self._previous = signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        except ValueError:  # not the main thread
            self._installed = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            self._installed = False
            signal.signal(signal.SIGINT, self._previous or signal.SIG_DFL)
        os.close(self.wake)
        os.close(self._alarm)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        try:
            os.write(self._alarm, b"!")
        except BlockingIOError:
            pass  # the pipe is full of interrupts: whoever waits is awake

    def quiet(self) -> None:
        """The wake-up was seen."""
        try:
            while os.read(self.wake, 64):
                pass
        except BlockingIOError:
            pass

    @contextmanager
    def raising(self) -> Iterator[None]:
        """A stretch in which an interrupt raises KeyboardInterrupt, as in a cell without Baton."""
        try:
            self._set(signal.default_int_handler)
            yield
        finally:
            try:
                self._set(self._handle)
            except KeyboardInterrupt:  # it came in this very moment
                self._set(self._handle)
                raise

    @contextmanager
    def raising_the_second(self) -> Iterator[None]:
        """A stretch that a first interrupt lets come to its end, and a second one does not."""

        def handle(number: int, frame: FrameType | None) -> None:
            self._handle(number, frame)
            if self.count > 1:
                raise KeyboardInterrupt

        try:
            self._set(handle)
            yield
        finally:
            self._set(self._handle)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A stretch inside of `raising` in which interrupts are counted again; of no effect outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)
        self._set(self._handle)
        try:
            yield
        finally:
            self._set(before)

    def _set(self, handler: Callable[[int, FrameType | None], object] | int | None) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, handler)


def send_whole(session: Session) -> None:
    """Lets an interrupt strike before or after a message that the main thread sends, and never between its parts."""
    send = session.send

    @functools.wraps(send)
    def send_between_interrupts(*arguments: Any, **options: Any) -> Any:
        with postponed():
            return send(*arguments, **options)

    session.send = send_between_interrupts


@contextmanager
def postponed() -> Iterator[None]:
    """A stretch that is not left half done: an interrupt takes effect at its end. Other threads get none."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:  # None: a library's in C
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
