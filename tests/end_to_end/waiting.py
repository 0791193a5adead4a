"""Waits for a condition with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

POLL_SECONDS = 0.02


def wait_until(condition: Callable[[], Value], what: str, seconds: float = 120) -> Value:
    """The first true value of `condition`."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"Not within {seconds} s: {what}")
        pause.wait(POLL_SECONDS)
    return value
