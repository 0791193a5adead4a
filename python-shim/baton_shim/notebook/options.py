"""The options of `%%gpu`, and what they mean for the cell.

**Invariant:** pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from IPython.core.error import UsageError

# `baton run` accepts the same durations and sizes (`src/commands/run/limits.rs`).
UNITS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}
PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h)")
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])(?:i?B)?", re.IGNORECASE)
POWERS = {"K": 10, "M": 20, "G": 30, "T": 40}
LONGEST_MODEL = 100
LONGEST_MS = 365 * 24 * UNITS["h"]


class Options(NamedTuple):
    """The options of one cell, with the values that mean "not given" as defaults."""

    quiet: bool = False
    """Whether the status line and the summary are hidden."""
    keep: frozenset[str] = frozenset()
    """Names that are sent to the session even if the cell's code does not show a use of them."""
    drop: frozenset[str] = frozenset()
    """Names that are sent in neither direction."""
    returns: bool = True
    """Whether the cell's changes are returned."""
    timeout_ms: int | None = None
    """The time limit of the cell; None for that of the course."""
    gpu_memory_bytes: int | None = None
    """How much GPU memory the session may allocate; the cell runs only on a GPU that has as much."""
    gpu: str | None = None
    """The GPU that the cell asks for: words of its model name, or a label of the worker."""
    environment: str | None = None
    """The environment of the course in which the cell runs; None for the one that the course names first."""
    background: str | None = None
    """The cell runs in the background; the variable that gets its handle, which may be the empty string for none."""
    priority: str = "normal"
    """`normal`, or `low` for batch work that runs after other work."""


def names(given: Iterable[str] | None, option: str) -> frozenset[str]:
    """The names, which are separated by commas or blanks."""
    found = [name for part in given or () for name in part.split(",") if name]
    for name in found:
        if not name.isidentifier():
            raise UsageError(f"{option} {name}: that is not the name of a variable\nhint: write {option} model,history")
    return frozenset(found)


def variable(text: str | None) -> str | None:
    """The variable that gets the handle of a background cell; an empty name means none."""
    if text and not text.isidentifier():
        raise UsageError(f"--background {text}: that is not the name of a variable\nhint: write --background training")
    return text


def milliseconds(text: str | None) -> int | None:
    """The duration in a text such as `90s`, `5m` or `1h30m`. Raises UsageError for any other text."""
    if text is None:
        return None
    parts = PART.findall(text)
    if parts and PART.sub("", text).strip() == "":
        total = round(sum(float(number) * UNITS[unit] for number, unit in parts))
        if 0 < total <= LONGEST_MS:
            return total
    raise UsageError(f"--timeout {text}: that is not a duration\nhint: write it as 90s, 5m or 1h30m")


def gpu_model(text: str | None) -> str | None:
    """The words that name a GPU. Raises UsageError for a text that cannot be a model."""
    if text is None:
        return None
    model = text.strip().strip("\"'")
    if 0 < len(model) <= LONGEST_MODEL and model.isprintable():
        return model
    raise UsageError(f"--gpu {text}: that is not the model of a GPU\nhint: write it as a100 or h100")


def gpu_bytes(text: str | None) -> int | None:
    """The size in bytes. Units are powers of 1024, as in GPU libraries."""
    if text is None:
        return None
    size = SIZE.fullmatch(text.strip())
    total = round(float(size[1]) * 2 ** POWERS[size[2].upper()]) if size else 0
    if 0 < total < 2**63:
        return total
    raise UsageError(f"--mem {text}: that is not a size\nhint: write it as 8G or 500M")
