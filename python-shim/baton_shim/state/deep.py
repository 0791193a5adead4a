"""Linked lists and deep trees: the pickler recurses into them, deeper than an ordinary stack allows."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

_STACK_BYTES = 512 << 20  # address space; only what is used takes memory
_LEVELS = 400_000


def with_deep_stack(function: Callable[[], Value]) -> Value:
    """Calls the function in a thread with a large stack. Returns its value or raises its exception."""
    values: list[Value] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            values.append(function())
        except BaseException as error:
            errors.append(error)

    before_bytes, before_levels = threading.stack_size(_STACK_BYTES), sys.getrecursionlimit()
    sys.setrecursionlimit(_LEVELS)
    try:
        thread = threading.Thread(target=work, name="baton-deep")
        thread.start()
        try:
            thread.join()
        except BaseException:  # an interrupt: make the thread fail soon, and leave nothing running
            sys.setrecursionlimit(before_levels)
            thread.join()
            raise
    finally:
        threading.stack_size(before_bytes)
        sys.setrecursionlimit(before_levels)
    if errors:
        raise errors[0]
    return values[0]
