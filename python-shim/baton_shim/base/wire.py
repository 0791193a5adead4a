"""Parts of `protocol::shim` that both ends write.

**Invariant:** pure.
"""

from __future__ import annotations

from typing import Any

CLEARS_RESULTS = "baton_clears_results"
"""The source of the payload of a cell that clears `Out`."""


def remote_error(name: str, value: str, traceback: list[str] | None = None, hint: str | None = None) -> dict[str, Any]:
    """An error as `protocol::job::RemoteError`: the name of its class, its message, the lines to show, what to do."""
    return {"name": name, "value": value, "traceback": traceback or [], "hint": hint}
