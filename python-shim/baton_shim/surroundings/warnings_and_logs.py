"""Settings of `warnings` and `logging`: which warnings and log records are shown."""

from __future__ import annotations

import logging
import re
import sys
import warnings
from functools import partial
from typing import Any

from baton_shim.surroundings.kind import Kind, edited, edits, entries


def filters(_: Any) -> list[Any]:
    return [plainly(entry) for entry in warnings.filters]


def give_filters(_: Any, difference: Any) -> None:
    """Filters as plain values. A filter for a category that is not imported here takes effect when it is."""
    real = {plainly(entry): entry for entry in warnings.filters}
    found = []
    before = None
    for plain in edited(real, difference):
        entry = real.get(plain) or make(plain)
        if entry is not None:
            found.append(entry)
        elif plain[2][0] not in sys.modules:
            from baton_shim.base import late

            later: Any = ([], [(plain, before)])
            late.when_imported(plain[2][0], partial(give_filters, _, later))
        before = plain
    warnings.resetwarnings()  # also makes Python forget which warnings it has shown
    warnings.filters[:] = found  # type: ignore[index]


def make(plain: tuple[Any, ...]) -> tuple[Any, ...] | None:
    action, message, (module, category), place, line = plain
    found: Any = sys.modules.get(module)
    for part in category.split("."):
        found = getattr(found, part, None)
    return (action, pattern(message), found, pattern(place), line) if found is not None else None


def plainly(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    action, message, category, place, line = entry
    return action, text(message), (category.__module__, category.__qualname__), text(place), line


def text(found: Any) -> Any:
    return (found.pattern, found.flags) if isinstance(found, re.Pattern) else found


def pattern(found: Any) -> Any:
    return re.compile(found[0], found[1] & ~re.UNICODE) if isinstance(found, tuple) else found


ORDINARY = (logging.NOTSET, False, True)


def levels(_: Any) -> dict[str, Any]:
    """Levels, what is disabled, and the plain handlers that `logging.basicConfig` adds to the root logger."""
    root = logging.root
    found: dict[str, Any] = {"": (root.level, root.disabled, plain_handlers()), "*": root.manager.disable}
    loggers: dict[str, Any] = root.manager.loggerDict  # large libraries have hundreds
    for name, logger in loggers.items():
        if type(logger) is not logging.PlaceHolder and (logger.level or logger.disabled or not logger.propagate):
            found[name] = (logger.level, logger.disabled, logger.propagate)
    return found


def give_level(_: Any, name: str, value: Any = ORDINARY) -> None:
    if name == "*":
        logging.disable(value)
    elif name:
        logger = logging.getLogger(name)
        logger.setLevel(value[0])
        logger.disabled, logger.propagate = value[1:]
    else:
        logging.root.setLevel(value[0])
        logging.root.disabled = value[1]
        if value[2] != plain_handlers():
            set_handlers(value[2])


def plain_handlers() -> tuple[Any, ...]:
    return tuple(plain for plain in map(plain_handler, logging.root.handlers) if plain is not None)


def plain_handler(handler: logging.Handler) -> tuple[Any, ...] | None:
    """Its stream, level and format; None for any other kind of handler."""
    if type(handler) is not logging.StreamHandler or handler.filters:
        return None
    stream = {id(sys.stderr): "stderr", id(sys.stdout): "stdout"}.get(id(handler.stream))
    formatter = handler.formatter
    if stream is None or (formatter is not None and type(formatter) is not logging.Formatter):
        return None
    style = type(getattr(formatter, "_style", None)).__name__
    return stream, handler.level, formatter and (getattr(formatter, "_fmt", None), formatter.datefmt, style)


def set_handlers(wanted: tuple[Any, ...]) -> None:
    for handler in list(logging.root.handlers):
        if plain_handler(handler) is not None:
            logging.root.removeHandler(handler)
    styles = {"PercentStyle": "%", "StrFormatStyle": "{", "StringTemplateStyle": "$"}
    for stream, level, form in wanted:
        handler = logging.StreamHandler(getattr(sys, stream))
        handler.setLevel(level)
        if form is not None:
            handler.setFormatter(logging.Formatter(form[0], form[1], styles.get(form[2], "%")))  # type: ignore[arg-type]
        logging.root.addHandler(handler)


WARNINGS_AND_LOGS: tuple[Kind, ...] = (
    Kind("warnings", "The filters of warnings", "warnings", filters, give_filters, difference=edits, whole=False),
    entries("logging", "Logging", "logging", levels, give_level, give_level),
)
