"""Handlers and filters that the notebook attached to loggers.

They are objects of the notebook like any other, so they are sent in the table's message itself, not as bytes. Loggers
are sent by name. What a library attached to its own loggers is not sent, because each process has its own; nor is
anything that writes to an open file (`log_files.py`).

**Invariant:** if neither side has a handler of the notebook, nothing is sent.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from baton_shim.surroundings.forwarding import Forwarder
from baton_shim.surroundings.warnings_and_logs import plain_handler

if TYPE_CHECKING:
    from baton_shim.base.undoing import OnUndo

Attached = dict[str, list[Any]]
"""Handlers and filters, by the name of their logger."""


class Handlers:
    """One end's view of what is attached at both ends."""

    name, title = "handlers", "The handlers of loggers"

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._known: Attached = {}
        self._next: Attached = {}

    def restart(self) -> None:
        """Keeps what the other end sent: it belongs to the notebook, even if that end is gone."""

    def look(self) -> Attached | None:
        """Everything that can be sent."""
        self._next = {}
        named = set(map(id, self._namespace.values()))
        for name, logger in loggers():
            of_notebook = id(logger) in named and not of_library(name)
            known = self._known.get(name, ())
            for part in (*logger.handlers, *logger.filters):
                chosen = of_notebook or id(part) in named or part in known or of_main(part)
                if chosen and can_be_sent(part) and (name or not is_plain(part)):
                    self._next.setdefault(name, []).append(part)
        return {**{name: [] for name in self._known}, **self._next} or None

    def commit(self, undo: OnUndo) -> None:
        undo(partial(setattr, self, "_known", self._known))
        self._known = self._next

    def apply(self, attached: Attached, undo: OnUndo) -> None:
        # After a failure, only the other end may have these.
        undo(partial(setattr, self, "_known", {**{name: [] for name in attached}, **self._known}))
        for name, parts in attached.items():
            logger, known = logging.getLogger(name), self._known.pop(name, [])
            handlers: Any = [part for part in parts if isinstance(part, logging.Handler)]
            filters: Any = [part for part in parts if not isinstance(part, logging.Handler)]
            here: list[Any]
            for here, now in ((logger.handlers, handlers), (logger.filters, filters)):
                undo(partial(here.__setitem__, slice(None), list(here)))
                here[:] = [one for one in here if one not in known and one not in parts] + now
            if parts:
                self._known[name] = parts


def loggers() -> list[tuple[str, logging.Logger]]:
    """Loggers that have handlers or filters."""
    root = logging.root
    found: list[Any] = [root, *root.manager.loggerDict.values()]  # large libraries have hundreds
    return [
        ("" if logger is root else logger.name, logger)
        for logger in found
        if type(logger) is not logging.PlaceHolder and (logger.handlers or logger.filters)
    ]


def of_library(logger: str) -> bool:
    return logger not in ("", "__main__") and logger.partition(".")[0] in sys.modules


def of_main(part: Any) -> bool:
    return type(part).__module__ == "__main__"


def is_plain(part: Any) -> bool:
    """Whether it is sent along with the levels."""
    return isinstance(part, logging.Handler) and plain_handler(part) is not None


def can_be_sent(part: Any) -> bool:
    if isinstance(part, (logging.FileHandler, Forwarder)):  # a file may be opened later
        return False
    stream = getattr(part, "stream", None)
    return not isinstance(stream, io.IOBase) or isinstance(stream, io.StringIO) or stream in (sys.stdout, sys.stderr)
