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
from baton_shim.state import errors
from baton_shim.state.culprits import unpackable
from baton_shim.state.errors import GpuServiceError
from baton_shim.state.message import Snapshot
from baton_shim.state.refusal import Refused, first_name
from baton_shim.state.table import Table

FORMAT = 1
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
    while True:
        table = make_table()
        try:
            snapshot = table.snapshot(sorted(names), extra=dict(extra(names)))
        except Refused as refused:
            culprits = {first_name(refused.path)} & names
            reasons = dict.fromkeys(culprits, refused.reason)
            if not culprits:
                raise GpuServiceError(f"Nothing was saved: {refused.path} {refused.reason}") from None
        except Exception as error:  # any error of a library's pickling
            reasons = _unpackable(make_table, names)
            if not reasons:
                text = f"{type(error).__name__}: {errors.short(error)}"
                raise GpuServiceError(f"Nothing was saved: the variables could not be packed ({text})") from None
        else:
            reasons = {}
            for obj, reason in table.stayed:
                for name in names:
                    if (way := table.path(obj, name)) is not None:
                        reasons.setdefault(name, reason if way in reason else f"holds '{way}', which {reason}")
            if table.stayed and not reasons:
                # The search for a path is limited, and does not know every kind of reference.
                reasons = _unpackable(make_table, names)
            if not reasons:
                return Whole(table, snapshot, sorted(names), left, [reason for _, reason in table.stayed])
        left |= reasons
        names -= reasons.keys()


def _unpackable(make_table: Callable[[], Table], names: set[str]) -> dict[str, str]:
    namespace = make_table().namespace
    return unpackable(make_table, {name: namespace[name] for name in names if name in namespace}, stand_ins=False)


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
