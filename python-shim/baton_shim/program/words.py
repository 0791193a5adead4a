"""Rewords messages of the proxy and of the notebook's half of this package for programs.

**Invariant:** pure.
"""

from __future__ import annotations

import re

_OTHERS = (
    ("then restart the kernel", "then start the program again"),
    ("restart the kernel", "start the program again"),
    ("Baton's proxy, which connects this kernel", "Baton's helper process, which connects this program"),
    ("the notebook's folder", "the program's folder"),
    ("The notebook", "The program"),
    ("the notebook", "the program"),
    ("This notebook", "This program"),
    ("shut down notebooks", "end notebooks and programs"),
)
_CELL = re.compile(r"\b([Tt]he|[Tt]his|[Aa]n earlier|[Aa]) (?:%%gpu )?cell\b")


def reworded(text: str, unit: str) -> str:
    """`unit`: what ran, "block" or "call"."""
    for before, now in _OTHERS:
        text = text.replace(before, now)
    return _CELL.sub(rf"\1 {unit}", text)
