"""How a change is taken back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

Action = Callable[[], object]
OnUndo = Callable[[Action], object]
"""Takes what takes back the change that is about to be made, or was just made."""


def take_back(actions: list[Action]) -> None:
    """The last one first. What cannot be taken back stays; the rest does not."""
    for action in reversed(actions):
        with suppress(Exception):
            action()


def refill(table: dict[Any, Any], content: dict[Any, Any]) -> None:
    """In place, because others hold the table."""
    table.clear()
    table.update(content)
