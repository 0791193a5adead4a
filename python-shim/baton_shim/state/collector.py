"""Pauses Python's garbage collector, which would scan everything repeatedly while millions of objects are created."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


@contextmanager
def collector_paused() -> Iterator[None]:
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def uncollected(function: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
    """A function during which the garbage collector is paused."""

    @functools.wraps(function)
    def wrapped(*arguments: Arguments.args, **named: Arguments.kwargs) -> Value:
        with collector_paused():
            return function(*arguments, **named)

    return wrapped
