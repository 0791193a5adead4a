"""How changes are undone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

Action = Callable[[], object]
OnUndo = Callable[[Action], object]
"""Registers an action that undoes the change that is about to be made, or was just made."""


def take_back(actions: list[Action]) -> None:
    """Undoes the changes, last one first. An action that fails does not stop the others."""
    for action in reversed(actions):
        with suppress(Exception):
            action()


def refill(table: dict[Any, Any], content: dict[Any, Any]) -> None:
    """Replaces the contents in place, because other objects hold the table."""
    table.clear()
    table.update(content)
