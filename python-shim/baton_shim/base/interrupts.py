"""SIGINT as a value to check, instead of an exception that may strike between any two instructions.

A KeyboardInterrupt in the middle of a frame would lose bytes; in the middle of an apply, half of a change. So a call
holds interrupts while it runs: they are counted, and they end waits. They raise as usual only while the student's own
code (or a prompt of Jupyter) runs. In ordinary cells, `Aim` does the same and also keeps each message whole.

**Invariant:** outside of the `raising` functions, no KeyboardInterrupt is raised while interrupts are held.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import functools
import inspect
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from jupyter_client.session import Session

# What `signal.signal` calls. Its conversion to enumerations takes ten times as long; a cell makes about thirty calls.
set_handler = _signal.signal
get_handler = _signal.getsignal


Result = TypeVar("Result")


class Interrupts:
    """Holds SIGINT from `__enter__` to `__exit__`. It does nothing in a thread that receives no signals."""

    also_ignored: ClassVar[bool] = True
    """Whether SIGINT is held even if the process ignores it, as kernels do between two cells. A plain program continues
    to ignore it, for example in the background of a shell script.
    """

    count: int
    """The number of interrupts so far."""

    def __init__(self) -> None:
        self.count = 0
        self._previous: Callable[[int, FrameType | None], object] | int | None = None
        self._installed = False
        self.wake, self._alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Interrupts:
        try:
            self._previous = set_handler(signal.SIGINT, self._handle)
            self._installed = self.also_ignored or self._previous != signal.SIG_IGN
            if not self._installed:
                set_handler(signal.SIGINT, self._previous)
        except ValueError:  # not the main thread
            self._installed = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            self._installed = False
            # None: a handler of a C library. Python 3.11 accepts only its own zero here, not that of the enumeration.
            set_handler(signal.SIGINT, self._previous or _signal.SIG_DFL)
        os.close(self.wake)
        os.close(self._alarm)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        try:
            os.write(self._alarm, b"!")
        except BlockingIOError:
            pass  # the pipe is full of interrupts, so the waiting thread is awake

    def strike(self) -> None:
        """After `__exit__`: the interrupts so far take effect here, as one."""
        if self.count:
            signal.raise_signal(signal.SIGINT)

    def quiet(self) -> None:
        """Consumes the wake-up."""
        try:
            while os.read(self.wake, 64):
                pass
        except BlockingIOError:
            pass

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Inside, an interrupt raises KeyboardInterrupt, as in a cell without Baton."""
        try:
            self._set(signal.default_int_handler)
            yield
        finally:
            self._hold_again()

    def raising_until(self, happens: Callable[[int], bool], function: Callable[[], Result]) -> Result:
        """Calls the function, in which an interrupt is counted and raises KeyboardInterrupt.

        The same exception, uncounted, ends the function when `happens` returns True. Another thread calls that, and it
        returns False at the latest when its argument, a descriptor, is readable.
        """
        if threading.current_thread() is not threading.main_thread():  # no signal can end the function here
            return function()
        here, happened, due, raises = threading.get_ident(), False, False, False

        def watch() -> None:
            nonlocal happened
            if happens(stopped):
                happened = True
                signal.pthread_kill(here, signal.SIGINT)  # also ends a system call that waits

        def handle(number: int, frame: FrameType | None) -> None:
            nonlocal happened, due, raises
            if happened:
                happened = False
            elif self._installed:
                self._handle(number, frame)
            else:  # the process ignores interrupts
                return
            due = True
            if raises:
                raises = False
                raise KeyboardInterrupt

        stopped, stop = os.pipe2(os.O_CLOEXEC)
        watcher = threading.Thread(target=watch, name="baton-question", daemon=True)
        before = set_handler(signal.SIGINT, handle)
        try:
            watcher.start()
            try:
                raises = True
                if due:
                    raise KeyboardInterrupt
                return function()
            finally:
                raises = False
                os.write(stop, b"!")
                watcher.join()
        finally:
            set_handler(signal.SIGINT, before)
            os.close(stopped)
            os.close(stop)

    @contextmanager
    def raising_the_second(self) -> Iterator[None]:
        """Inside, a first interrupt is only counted; a second one raises KeyboardInterrupt."""

        def handle(number: int, frame: FrameType | None) -> None:
            self._handle(number, frame)
            if self.count > 1:
                raise KeyboardInterrupt

        try:
            self._set(handle)
            yield
        finally:
            self._hold_again()

    def _hold_again(self) -> None:
        try:
            self._set(self._handle)
        except KeyboardInterrupt:  # it arrived at this very moment
            self._set(self._handle)
            raise

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside a `raising` block, counts interrupts again. No effect outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = get_handler(signal.SIGINT)
        self._set(self._handle)
        try:
            yield
        finally:
            self._set(before)

    def _set(self, handler: Callable[[int, FrameType | None], object] | int | None) -> None:
        if self._installed:
            set_handler(signal.SIGINT, handler)


def aim_interrupts(kernel: Any) -> None:
    """From now on, an interrupt of this kernel loses no message and no reply."""
    # A plain kernel waits for its output thread before it replies, and an interrupt strikes there. This one waits only
    # if something was printed, so sending the reply is the first moment at which the control thread and its interrupt
    # run.
    send_whole(kernel.session)
    Aim(kernel)


def send_whole(session: Session) -> None:
    """Makes each message that the main thread sends atomic: an interrupt strikes before or after it."""
    send = session.send

    @functools.wraps(send)
    def send_between_interrupts(*arguments: Any, **options: Any) -> Any:
        with postponed():
            return send(*arguments, **options)

    session.send = send_between_interrupts


@contextmanager
def postponed() -> Iterator[None]:
    """Inside, nothing is left half done: an interrupt takes effect at the end. Other threads receive none."""
    before = get_handler(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:  # None: a handler of a C library
        yield
        return
    arrived: list[int] = []
    set_handler(signal.SIGINT, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        set_handler(signal.SIGINT, before)
        if arrived:
            signal.raise_signal(signal.SIGINT)


class Aim:
    """While the notebook kernel executes a request, an interrupt strikes only the student's code.

    ipykernel raises KeyboardInterrupt wherever it happens to be. Between a request's arrival and the cell's first line,
    and between its last line and the reply, that loses the reply, and the client waits forever. Here such an interrupt
    is kept: if it arrives before the code, it strikes as the code begins; if it arrives after, it does nothing.
    """

    def __init__(self, kernel: Any) -> None:
        self._handler: Any = signal.default_int_handler
        """The student's handler."""
        self._came = False
        self._keep = self._note  # one object, so that `is` recognises it
        self._kernel = kernel
        shell, handlers = kernel.shell, kernel.shell_handlers
        for name, handler in handlers.items():
            if name != "execute_request":
                handlers[name] = self._reachable(handler)
        shell.run_code = self._struck(shell.run_code)
        shell.user_expressions = self._to_its_end(shell.user_expressions)
        shell.events.trigger = self._to_its_end(shell.events.trigger)
        kernel.pre_handler_hook = self._begin  # last: without this hook, the others do nothing

    def _begin(self) -> None:
        """Replaces ipykernel's hook, which would let interrupts raise from here on. ipykernel restores the old one."""
        self._handler, self._came = signal.default_int_handler, False
        self._kernel.saved_sigint_handler = set_handler(signal.SIGINT, self._keep)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True

    @contextmanager
    def _in_reach(self) -> Iterator[None]:
        """The student's code runs inside. A handler that it installs stays from one statement to the next."""
        kept = threading.current_thread() is threading.main_thread() and get_handler(signal.SIGINT) is self._keep
        try:
            if kept:
                set_handler(signal.SIGINT, self._handler)
            yield
        finally:
            if kept:
                try:
                    self._handler = set_handler(signal.SIGINT, self._keep)
                except KeyboardInterrupt:  # it arrived at this very moment
                    set_handler(signal.SIGINT, self._keep)
                    raise

    def _struck(self, run_code: Any) -> Any:
        """Wraps the execution of one statement. IPython shows what is raised here as the cell's own error."""

        @functools.wraps(run_code)
        async def call(*arguments: Any, **options: Any) -> Any:
            with self._in_reach():
                if self._came and threading.current_thread() is threading.main_thread():
                    self._came = False
                    signal.raise_signal(signal.SIGINT)
                return await run_code(*arguments, **options)

        return call

    def _to_its_end(self, function: Any) -> Any:
        """Wraps functions that run the student's code beside the cell and catch its errors; never raises."""

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            results: list[Any] = []
            try:
                with self._in_reach():
                    results.append(function(*arguments, **options))
            except KeyboardInterrupt:  # it arrived just before or just after
                if not results:
                    results.append(function(*arguments, **options))
            return results[0]

        return call

    def _reachable(self, function: Any) -> Any:
        """Wraps the handler of any other request, which ipykernel abandons when it is interrupted."""

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            with self._in_reach():
                return function(*arguments, **options)

        @functools.wraps(function)
        async def call_and_wait(*arguments: Any, **options: Any) -> Any:
            with self._in_reach():
                return await function(*arguments, **options)

        return call_and_wait if inspect.iscoroutinefunction(function) else call
