"""Calls of `gpu.map` in a session: each begins with the state at the time when `gpu.map` was called.

In: the function with everything that it uses, and some of the items, each as a self-contained message. Out: the
results, each as such a message.

The first message is applied again for each call, so a call never sees changes of another. The memory of large arrays is
mapped rather than copied, until it is written to.

**Invariant:** afterwards, the session's variables and settings are as before.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from baton_shim.base.undoing import OnUndo, take_back
from baton_shim.state import Table
from baton_shim.state.packed import Packed, Unpacked, packed
from baton_shim.surroundings import Surroundings, warn

FUNCTION, ARGUMENTS, RESULT, LEFT = "function", "arguments", "result", "left"
"""The names of these objects in their messages. `LEFT`: stand-ins for variables that could not be sent, by name."""
_LONGEST_SHOWN = 80


class Kept:
    """The message that all jobs of one `gpu.map` share."""

    def __init__(self) -> None:
        self._of: Packed | None = None
        self._unpacked: Unpacked | None = None

    def unpacked(self, whole: Packed) -> Unpacked:
        if self._unpacked is None or self._of is None or self._of.content is not whole.content:
            if self._unpacked is not None:
                self._unpacked.close()
            self._of, self._unpacked = whole, Unpacked(whole)
        return self._unpacked


KEPT = Kept()


class CannotReturn(TypeError):
    """The result of a call contains something that cannot leave its session."""


CannotReturn.__name__ = CannotReturn.__qualname__ = "TypeError"
CannotReturn.__module__ = "builtins"


def run_calls(shared: Packed, calls: Packed, first: int) -> list[Packed]:
    """The results, in order. `first`: the number of the first item among all items. Raises the error of a call."""
    from baton_shim.base.here import this_shell

    kernel = this_shell().kernel
    namespace: dict[str, Any] = kernel.shell.user_ns
    results = []
    message = KEPT.unpacked(shared)
    with Unpacked(calls) as items:
        everything: list[tuple[Any, ...]] = items.apply(Table(namespace))[ARGUMENTS]
        for number, arguments in enumerate(everything, first):
            with begun(message, namespace, kernel.surroundings) as function:
                try:
                    result = function(*arguments)
                    results.append(packed_result(result, namespace, number))
                except Exception as error:
                    error.add_note(f"This is the error of item {number} of gpu.map: {shown(arguments)}")
                    raise
                del function, result
    return results


@contextlib.contextmanager
def begun(message: Unpacked, namespace: dict[str, Any], surroundings: Surroundings) -> Iterator[Any]:
    """The function, with the state that it uses as it was in the notebook."""
    before, done = dict(namespace), list[Any]()

    def apply_extra(extra: dict[str, Any], undo: OnUndo) -> None:
        for line in surroundings.apply(extra, done.append):
            warn(line)

    with surroundings.settings.put_back():
        try:
            extra = message.apply(Table(namespace), apply_extra=apply_extra)
            namespace.update(extra[LEFT])
            yield extra.pop(FUNCTION)
        finally:
            take_back(done)
            for name in set(namespace) - before.keys():
                del namespace[name]
            namespace.update(before)


def packed_result(result: Any, namespace: dict[str, Any], number: int) -> Packed:
    table = Table(namespace, home=False)
    snapshot = table.snapshot([], extra={RESULT: result}, places=[(RESULT, result)])
    if table.left_behind:
        obj, reason = table.left_behind[0]
        namespace[RESULT] = result  # the path to the object is looked up here, until this call has ended
        way = table.path(obj, RESULT) or RESULT
        raise CannotReturn(
            f"'{way}' of item {number} of gpu.map {reason} and cannot return\n"
            "hint: return what you need of it, such as its numbers"
        )
    return packed(snapshot)


def shown(arguments: tuple[Any, ...]) -> str:
    text = ", ".join(map(short, arguments))
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def short(value: Any) -> str:
    if sys.getsizeof(value, _LONGEST_SHOWN + 1) > 10 * _LONGEST_SHOWN:  # its `repr` may take long
        return f"<{type(value).__name__}>"
    try:
        return repr(value)
    except Exception:  # any error of the student's own class
        return f"<{type(value).__name__}>"
