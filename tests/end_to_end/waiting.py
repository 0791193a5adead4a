"""Waits for a condition with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.2
PAUSES_A_WAIT = 20
"""A pause lasts at most this part of the time that the wait has taken. Some conditions look at all processes, and three
tests that wait at once would take the processor from what they wait for."""


def wait_until(condition: Callable[[], Value], what: str, seconds: float = 120) -> Value:
    """The first true value of `condition`."""
    begun = time.monotonic()
    pause = threading.Event()
    while not (value := condition()):
        waited = time.monotonic() - begun
        if waited > seconds:
            raise AssertionError(f"Not within {seconds} s: {what}")
        pause.wait(min(max(waited / PAUSES_A_WAIT, SHORTEST_PAUSE), LONGEST_PAUSE))
    return value
