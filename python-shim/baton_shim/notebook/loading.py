"""Binds the variables that another kernel left: those of a saved state, or of an attached job.

**Invariant:** all of them are bound, or none.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from baton_shim.base import sources
from baton_shim.base.closure import reach
from baton_shim.base.interrupts import Interrupts
from baton_shim.base.version import __version__
from baton_shim.notebook.cell import cell_number
from baton_shim.notebook.status import listed
from baton_shim.state import Table, TableBroken, errors
from baton_shim.state.errors import GpuServiceError
from baton_shim.state.whole import FORMAT, PYTHON
from baton_shim.surroundings import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from baton_shim.base.link import Message
    from baton_shim.base.undoing import OnUndo
    from baton_shim.notebook.home import Home


@dataclass
class Load:
    """A load as a cell, for the undo log."""

    number: int
    unit: str


def load(
    home: Home, name: str, message: Message, *, unit: str, wanted: set[str] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Binds the variables in the message, `StateLoaded` or `Attached`; or only the wanted ones, and what they use that
    the notebook lacks. Closes the message.

    `name`: what messages to the student call the state or the job. `unit`: the magic, for `%gpu_undo`. Returns the
    data that came with the variables, and lines that report what was done. After a GpuServiceError nothing has changed.
    """
    about = message.body["about"]
    try:
        _check(name, about)
        for line in _differences(about["packages"]):
            warn(line)
        names = wanted or set(about["variables"])
        replaced = sorted(names & home.namespace.keys())
        extra, used = _apply(home, name, message, wanted, unit)
    finally:
        message.close()
    lines = [f"Loaded {listed(sorted(names))} of {name}. %gpu_undo undoes this"] if names else []
    if replaced:
        lines.append(f"Replaced: {listed(replaced)}")
    if used:
        lines.append(f"Also loaded, because these use it: {listed(sorted(used))}")
    present = {*home.namespace, *vars(builtins)}
    for line in missing_of(home, names | used, f"{name} or the notebook", lambda one: one not in present):
        warn(line)
    return extra, lines


def missing_of(home: Home, names: Iterable[str], where: str, is_missing: Callable[[str], bool]) -> Iterator[str]:
    """Names that the functions and classes among them use and that do not exist."""
    for name in sorted(names):
        used = reach([name], home.namespace).names
        if missing := sorted(filter(is_missing, used)):
            yield f"Not in {where}: {listed(missing)}, which {name} uses"


def _apply(
    home: Home, name: str, message: Message, wanted: set[str] | None, unit: str
) -> tuple[dict[str, Any], set[str]]:
    """Returns the data that came with the names, and which names are bound besides the wanted ones (None: all)."""
    troubles: list[str] = []
    used = set[str]()

    def only(values: Mapping[str, object]) -> set[str]:
        assert wanted is not None
        while True:
            chosen = wanted | used
            reached = reach([], home.namespace, [values[one] for one in chosen if one in values])
            new = {one for one in reached.names if one in values and one not in home.namespace} - chosen
            if not new:
                return chosen
            used.update(new)

    def apply_extra(extra: dict[str, Any], undo: OnUndo) -> None:
        if wanted is None:
            troubles.extend(home.surroundings.apply(extra, undo))

    table = Table(home.namespace, home=True, only=None if wanted is None else only)
    with home.turn, Interrupts():
        try:
            assert message.file_descriptor is not None
            extra: Any = table.apply(message.body["delta"], message.file_descriptor, apply_extra=apply_extra)
        except BaseException as error:  # any error of the classes while their objects are rebuilt
            text = str(error) if isinstance(error, TableBroken) else f"{type(error).__name__}: {errors.short(error)}"
            hint = None
            if isinstance(error, ImportError) and error.name:
                hint = f"install the package of the module {error.name} and load it again"
            raise GpuServiceError(f"{name} could not be loaded ({text})", hint) from error
        home.undo_log.note(Load(cell_number(home.shell), unit), table)
        home.undo_log.table_ends(table)
    for file, (_, text) in extra["sources"].items():
        sources.remember(file, text)
    for line in troubles:
        warn(line)
    return extra, used


def _check(name: str, about: dict[str, Any]) -> None:
    """Raises GpuServiceError if this kernel cannot read the state."""
    whose = f"{name} was saved with Python {about['python']} and Baton {about['baton']}"
    if about["format"] != FORMAT:
        raise GpuServiceError(
            f"{whose}, whose states Baton {__version__} cannot read. Nothing was loaded",
            f"load it in a kernel with Baton {about['baton']}",
        )
    if about["python"] != PYTHON:
        raise GpuServiceError(
            f"{whose}; this kernel runs Python {PYTHON}, which cannot use its functions. Nothing was loaded",
            f"load it in a kernel with Python {about['python']}",
        )


def _differences(saved: dict[str, str]) -> list[str]:
    """What the kernel that saved the state had and this one lacks."""
    from importlib.metadata import PackageNotFoundError, version

    lines = []
    for name, there in sorted(saved.items()):
        try:
            here: str | None = version(name)
        except PackageNotFoundError:
            here = None
        if here is None:
            lines.append(f"The state was saved with {name} {there}, which is not installed here")
        elif here != there:
            lines.append(f"The state was saved with {name} {there}; here it is {here}")
    return lines
