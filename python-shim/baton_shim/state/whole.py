"""Variables as the only message of a separate object table, for a kernel that has none of them yet.

Identity, aliasing and views are kept, as between the two ends of a table. What cannot be sent is left out with every
name that reaches it, and reported.

**Invariant:** changes nothing here; another table of the same namespace is not affected.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from baton_shim.base.version import __version__
from baton_shim.state.culprits import culprits, reasons_of, refusal_of, unpackable
from baton_shim.state.errors import GpuServiceError
from baton_shim.state.message import Snapshot
from baton_shim.state.table import Table

FORMAT = 2
"""Incremented with each change of the message that other versions cannot read."""
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class Whole(NamedTuple):
    table: Table
    """Keeps the memory of the snapshot."""
    snapshot: Snapshot
    names: list[str]
    """The names that are included."""
    left: dict[str, str]
    """The names that are left out, and why."""
    losses: list[str]
    """Why a part of the accompanying state is left out."""

    def about(self) -> dict[str, Any]:
        """What a kernel must know before it reads the message."""
        return {
            "format": FORMAT,
            "baton": __version__,
            "python": PYTHON,
            "variables": self.names,
            "packages": packages(),
            "left_out": self.left,
        }


def whole(
    make_table: Callable[[], Table], names: Iterable[str], extra: Callable[[set[str]], Mapping[str, object]]
) -> Whole:
    """All of the names that can be sent, with the `extra` for these names.

    Raises GpuServiceError if none can.
    """
    names, left = set(names), dict[str, str]()
    lost: dict[str, str] = {}  # parts of the `extra` that cannot be sent, and why
    while True:
        table = make_table()
        values = {name: table.namespace[name] for name in names if name in table.namespace}
        parts = {key: part for key, part in extra(names).items() if key not in lost}
        try:
            snapshot = table.snapshot(sorted(names), extra=parts)
        except Exception as error:  # `Refused`, or any error of a library's pickling
            reasons = reasons_of(culprits(make_table, values, error))
            news = {} if reasons else reasons_of(unpackable(make_table, parts))
            if not (reasons or news):
                refused = refusal_of("the variables", error)
                raise GpuServiceError(f"Nothing was saved: {refused.path} {refused.reason}") from None
            lost |= news
        else:
            reasons = {}
            for obj, reason in table.left_behind:
                for name in names:
                    if (way := table.path(obj, name)) is not None:
                        reasons.setdefault(name, reason if way in reason else f"holds '{way}', which {reason}")
            if table.left_behind and not reasons:
                # The search for a path is limited, and does not know every kind of reference.
                reasons = reasons_of(unpackable(make_table, values, stand_ins=False))
            if not reasons:
                losses = [*lost.values(), *(reason for _, reason in table.left_behind)]
                return Whole(table, snapshot, sorted(names), left, losses)
        left |= reasons
        names -= reasons.keys()


def packages() -> dict[str, str]:
    """The installed packages of which something is imported, with their versions."""
    from importlib.metadata import PackageNotFoundError, packages_distributions, version

    found = {}
    imported = {module.partition(".")[0] for module in tuple(sys.modules)}
    for module, names in packages_distributions().items():
        if module not in imported:
            continue
        for name in names:
            try:
                found[name] = version(name)
            except PackageNotFoundError:  # its files are partly deleted
                continue
    return found
