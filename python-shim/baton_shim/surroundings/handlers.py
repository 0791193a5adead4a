"""What the notebook hung on loggers: handlers and filters.

They are objects of the notebook like any other, so they travel in the table's message itself, not as bytes. Loggers
travel by their names. What a library hung on its loggers stays, because each process has its own, and so does what
writes to an open file.

**Invariant:** without a handler of the notebook on either side nothing travels.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Mapping
from typing import Any

from baton_shim.surroundings.notices import plain_handler

Hung = dict[str, list[Any]]
"""Handlers and filters, by the name of their logger."""


class Handlers:
    """One end's view of what hangs in both."""

    def __init__(self) -> None:
        self._known: Hung = {}

    def depart(self, namespace: Mapping[str, Any]) -> Hung | None:
        """All that travels; None where the other end has nothing to do."""
        before, self._known = self._known, {}
        named = set(map(id, namespace.values()))
        for name, logger in loggers():
            of_notebook = id(logger) in named and not of_library(name)
            known = before.get(name, ())
            for part in (*logger.handlers, *logger.filters):
                chosen = of_notebook or id(part) in named or part in known or of_main(part)
                if chosen and can_travel(part) and (name or not is_plain(part)):
                    self._known.setdefault(name, []).append(part)
        return {**{name: [] for name in before}, **self._known} or None

    def land(self, hung: Hung | None) -> None:
        for name, parts in (hung or {}).items():
            logger, known = logging.getLogger(name), self._known.pop(name, [])
            handlers = [part for part in parts if isinstance(part, logging.Handler)]
            filters = [part for part in parts if not isinstance(part, logging.Handler)]
            logger.handlers[:] = [one for one in logger.handlers if one not in known and one not in parts] + handlers
            logger.filters[:] = [one for one in logger.filters if one not in known and one not in parts] + filters
            if parts:
                self._known[name] = parts


def loggers() -> list[tuple[str, logging.Logger]]:
    """Those that something hangs on."""
    root = logging.root
    found: list[tuple[str, Any]] = [("", root), *root.manager.loggerDict.items()]  # large libraries have hundreds
    return [
        (name, logger)
        for name, logger in found
        if type(logger) is not logging.PlaceHolder and (logger.handlers or logger.filters)
    ]


def of_library(logger: str) -> bool:
    return logger not in ("", "__main__") and logger.partition(".")[0] in sys.modules


def of_main(part: Any) -> bool:
    return type(part).__module__ == "__main__"


def is_plain(part: Any) -> bool:
    """One that goes along with the levels."""
    return isinstance(part, logging.Handler) and plain_handler(part) is not None


def can_travel(part: Any) -> bool:
    stream = getattr(part, "stream", None)
    return not isinstance(stream, io.IOBase) or isinstance(stream, io.StringIO) or stream in (sys.stdout, sys.stderr)
