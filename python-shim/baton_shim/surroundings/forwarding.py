"""The handler of a session that stands for one of the notebook, and the log records that it collects.

**Invariant:** bounded: the oldest records are dropped first, and the notebook's log file says how many.
"""

from __future__ import annotations

import logging
import numbers
import pickle
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

MOST_BYTES = 16 << 20
"""About 40,000 records."""
_PLAIN = frozenset((int, float, bool, str, type(None)))
Record = tuple[int, bytes]
"""The number of the notebook's handler, and the pickled attributes of a log record."""


class Records:
    """The last records of all forwarders of a session."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._kept: deque[Record] = deque()
        self._bytes = 0
        self._dropped: dict[int, tuple[int, bytes]] = {}
        """By handler: how many were dropped, and the last of them."""

    def add(self, number: int, values: dict[str, Any]) -> None:
        self._kept.append((number, pickle.dumps(values)))
        self._bytes += len(self._kept[-1][1])
        while self._bytes > MOST_BYTES:
            number, oldest = self._take_oldest()
            count, _ = self._dropped.get(number, (0, b""))
            self._dropped[number] = count + 1, oldest

    def all(self) -> list[Record]:
        """Those that are kept, after one for each handler that lacks some."""
        with self.lock:
            return [*self._notes(), *self._kept]

    def _notes(self) -> Iterator[Record]:
        for number, (count, last) in self._dropped.items():
            # The handler's formatter may need any attribute of its records.
            text = f"Baton dropped {count} log records of %%gpu cells here: it keeps the last {MOST_BYTES >> 20} MiB"
            yield number, pickle.dumps({**pickle.loads(last), "msg": text, "exc_text": None, "stack_info": None})

    def forget(self, sent: list[Record]) -> None:
        """The notebook has these."""
        known = set(map(id, sent))
        with self.lock:
            self._dropped.clear()
            while self._kept and id(self._kept[0]) in known:
                self._take_oldest()

    def _take_oldest(self) -> Record:
        oldest = self._kept.popleft()
        self._bytes -= len(oldest[1])
        return oldest


class Forwarder(logging.Handler):
    def __init__(self, number: int, level: int, records: Records) -> None:
        super().__init__(level)
        self.lock = records.lock  # logging holds it during `emit`, and renews it in a forked process
        self._number, self._records = number, records

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._records.add(self._number, portable(record))
        except Exception:
            self.handleError(record)


def portable(record: logging.LogRecord) -> dict[str, Any]:
    """The attributes of a record as plain values, with its text as it is now."""
    values = {**vars(record), "msg": record.getMessage(), "args": None, "exc_info": None}
    if record.exc_info and not record.exc_text:
        values["exc_text"] = logging.Formatter().formatException(record.exc_info)
    return {name: plain(value) for name, value in values.items()}


def plain(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, numbers.Real):  # of numpy, for example
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return str(value)
