"""The object table: how the notebook's state moves between its kernel and its session.

What flows in: a namespace and names. What flows out: one message (`Snapshot`) that brings the other kernel's table,
and so the very objects that it holds, up to date.

**Invariant:** Python never copies or hashes large memory; it says where it lies. `packed.py` does copy it.
"""

from __future__ import annotations

from baton_shim.state.deferred import Budget
from baton_shim.state.message import SegmentView, Snapshot
from baton_shim.state.refusal import Refused, Stayed, StayedError, TableBroken, stayed_text
from baton_shim.state.table import Table

__all__ = [
    "Budget",
    "Refused",
    "SegmentView",
    "Snapshot",
    "Stayed",
    "StayedError",
    "Table",
    "TableBroken",
    "stayed_text",
]
