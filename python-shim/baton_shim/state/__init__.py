"""The object table: how the notebook's state is transferred between its kernel and its session.

In: a namespace and names. Out: one message (`Snapshot`) that brings the other kernel's table, and so the very objects
that it holds, up to date.

**Invariant:** Python never copies or hashes large memory; it only reports addresses. `packed.py` is the exception.
"""

from __future__ import annotations

from baton_shim.state.deferred import Budget
from baton_shim.state.message import SegmentView, Snapshot
from baton_shim.state.refusal import Refused, StandIn, StandInError, TableBroken, stand_in_text
from baton_shim.state.table import Table

__all__ = [
    "Budget",
    "Refused",
    "SegmentView",
    "Snapshot",
    "StandIn",
    "StandInError",
    "Table",
    "TableBroken",
    "stand_in_text",
]
