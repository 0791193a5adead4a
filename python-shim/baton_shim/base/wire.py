"""Parts of `protocol::shim` that both ends write.

**Invariant:** pure.
"""

from __future__ import annotations

from typing import Any

CLEARS_RESULTS = "baton_clears_results"
"""The source of the payload of a cell that clears `Out`."""
# The broker refuses a message of 60 MiB or 500,000 elements, and a character may take four bytes.
MOST_CHARACTERS, MOST_LINES = 4 << 20, 10_000


def remote_error(name: str, value: str, traceback: list[str] | None = None, hint: str | None = None) -> dict[str, Any]:
    """An error as `protocol::job::RemoteError`: the name of its class, its message, the lines to show, what to do."""
    lines = shortened(traceback or [])
    most = MOST_CHARACTERS if sum(map(len, lines)) <= MOST_CHARACTERS else MOST_CHARACTERS // len(lines)
    return {
        "name": cut(name, MOST_CHARACTERS),
        "value": cut(value, MOST_CHARACTERS),
        "traceback": [cut(line, most) for line in lines],
        "hint": hint,
    }


def shortened(lines: list[str]) -> list[str]:
    """The first and last of very many lines."""
    if len(lines) <= MOST_LINES:
        return lines
    half = MOST_LINES // 2
    return [*lines[:half], f"[Baton left out {len(lines) - 2 * half} lines here]", *lines[-half:]]


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}[Baton left out {len(text) - most} characters here]"
