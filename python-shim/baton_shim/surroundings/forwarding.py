"""The handler of a session that stands for one of the notebook, and the log records that it collects."""

from __future__ import annotations

import logging
import numbers
from typing import Any

_PLAIN = frozenset((int, float, bool, str, type(None)))
Record = tuple[int, dict[str, Any]]
"""The number of the notebook's handler, and the attributes of a log record."""


class Forwarder(logging.Handler):
    def __init__(self, number: int, level: int, records: list[Record]) -> None:
        super().__init__(level)
        self._number, self._records = number, records

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._records.append((self._number, portable(record)))
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
