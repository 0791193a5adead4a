"""Log records of `%%gpu` cells for the notebook's handlers that write to a file.

Such a handler stays in the notebook, because two kernels that write to one open file would overwrite each other. The
session has a `Forwarder` in its place, which collects records. With the cell's results the last of them go to the
handler, in their order. If a cell removes the forwarder from its logger, the handler is removed, too.

**Invariant:** where the notebook has such a handler, a session has one, too, so `logging.info` adds none.
"""

from __future__ import annotations

import itertools
import logging
import pickle
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from baton_shim.surroundings.forwarding import Forwarder, Record, Records
from baton_shim.surroundings.handlers import can_be_sent, loggers, of_library

if TYPE_CHECKING:
    from baton_shim.base.undoing import OnUndo

NAME, TITLE = "log_files", "The handlers of log files"
Placed = tuple[str, int, int]
"""The name of a logger, the number of one of its handlers, and the handler's level."""


class HomeLogFiles:
    """The notebook's handlers, and which of them the session knows."""

    name, title = NAME, TITLE

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._handlers: dict[int, logging.Handler] = {}
        self._numbers = itertools.count()
        self._known: list[Placed] = []
        self._next: list[Placed] = []

    def look(self) -> list[Placed] | None:
        staying = [(name, logger, one) for name, logger in loggers() for one in logger.handlers if stays(one)]
        named = set(map(id, self._namespace.values())) if staying else set()
        self._next = [
            (name, self._number(handler), handler.level)
            for name, logger, handler in staying
            if id(handler) in named or (not of_library(name) and (id(logger) in named or is_for_file(name, handler)))
        ]
        return self._next if self._next != self._known else None

    def _number(self, handler: logging.Handler) -> int:
        known = next((number for number, one in self._handlers.items() if one is handler), None)
        number = next(self._numbers) if known is None else known
        self._handlers[number] = handler
        return number

    def commit(self, undo: OnUndo) -> None:
        undo(partial(setattr, self, "_known", self._known))
        used = {number for _, number, _ in (*self._known, *self._next)}
        self._handlers = {number: one for number, one in self._handlers.items() if number in used}
        self._known = self._next

    def apply(self, said: tuple[bytes, list[Placed]], undo: OnUndo) -> None:
        """What has been written to a file stays there, like the files of a cell."""
        records, removed = said
        for number, values in pickle.loads(records):
            if number in self._handlers:
                self._handlers[number].handle(logging.makeLogRecord(pickle.loads(values)))
        for name, number, _ in removed:
            here = logging.getLogger(name).handlers
            undo(partial(here.__setitem__, slice(None), list(here)))
            here[:] = [one for one in here if one is not self._handlers.get(number)]

    def restart(self) -> None:
        self._known = []


class SessionLogFiles:
    """The forwarders of a session."""

    name, title = NAME, TITLE

    def __init__(self) -> None:
        self._records = Records()
        self._placed: dict[Placed, Forwarder] = {}
        self._sent: list[Record] = []
        self._removed: list[Placed] = []

    def look(self) -> tuple[bytes, list[Placed]] | None:
        self._sent = self._records.all()
        self._removed = [one for one, here in self._placed.items() if here not in logging.getLogger(one[0]).handlers]
        return (pickle.dumps(self._sent), self._removed) if self._sent or self._removed else None

    def commit(self, undo: OnUndo) -> None:
        self._records.forget(self._sent)
        self._sent = []
        for one in self._removed:
            del self._placed[one]

    def apply(self, placed: list[Placed], undo: OnUndo) -> None:
        undo(partial(setattr, self, "_placed", self._placed))
        before, self._placed = self._placed, {}
        for name in dict.fromkeys(name for name, *_ in (*before, *placed)):
            here = logging.getLogger(name).handlers
            undo(partial(here.__setitem__, slice(None), list(here)))
            here[:] = [one for one in here if type(one) is not Forwarder]
            if not any(map(stays, here)):  # a cell under `%%both` may have opened the file here, too
                new = {one: Forwarder(*one[1:], self._records) for one in placed if one[0] == name}
                self._placed |= new
                here += new.values()

    def restart(self) -> None:
        """Nothing to do: a session has the same notebook all its life."""


def stays(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.StreamHandler) and not can_be_sent(handler)


def is_for_file(logger: str, handler: logging.Handler) -> bool:
    """Whether a handler without a name is one of the notebook: a kernel has handlers for its own streams, too."""
    return not logger or isinstance(handler, logging.FileHandler)
