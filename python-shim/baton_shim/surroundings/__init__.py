"""What a cell depends on besides its names: random state, settings, environment, folder, warnings, logging, figures.

Each end remembers how the other one was left (`_known`), looks at what it has now, and says the differences. They
travel inside the table's message, each kind as bytes of its own, so that one that fails costs nothing but itself.

**Invariant:** never imports a library that is not imported here. What arrives for one waits until it is.
"""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from baton_shim.surroundings.gpus import GPUS
from baton_shim.surroundings.handlers import Handlers
from baton_shim.surroundings.hooks import Hooks
from baton_shim.surroundings.imports import IMPORTS
from baton_shim.surroundings.ipython import IPYTHON
from baton_shim.surroundings.jaxes import JAX
from baton_shim.surroundings.kind import Kind
from baton_shim.surroundings.notices import NOTICES
from baton_shim.surroundings.process import PROCESS
from baton_shim.surroundings.registered import REGISTERED

if TYPE_CHECKING:
    from baton_shim.surroundings.figures import Figures

Changes = dict[str, list[bytes]]
_WAITING = object()


# Of Python and IPython themselves. How these are when a kernel starts must be known.
AT_START: tuple[Kind, ...] = (*PROCESS, *NOTICES, *GPUS, *IPYTHON, IMPORTS)


@functools.cache
def kinds() -> tuple[Kind, ...]:
    from baton_shim.surroundings.libraries import LIBRARIES
    from baton_shim.surroundings.plots import PLOTS
    from baton_shim.surroundings.randomness import RANDOMNESS

    return (*AT_START, *LIBRARIES, *PLOTS, *RANDOMNESS)


class Departing(NamedTuple):
    changes: Changes
    known: dict[str, Any]
    """How this end is, for those kinds."""


class Surroundings:
    def __init__(self) -> None:
        JAX.watch()
        REGISTERED.watch()
        self._start = {kind.name: kind.fresh() for kind in AT_START}
        self._known: dict[str, Any] = dict(self._start)
        self._waiting: Changes = {}
        self._told: set[str] = set()  # of these kinds it was said that they stay
        self._modules = 0  # so many were imported at the last look
        self.handlers = Handlers()
        self.hooks = Hooks()

    def restart(self) -> None:
        """The other end is a process that has just begun."""
        self._known = dict(self._start)
        vars(self).pop("figures", None)

    @functools.cached_property
    def figures(self) -> Figures:
        from baton_shim.surroundings.figures import Figures

        return Figures()

    def depart(self) -> Departing:
        """What the other end lacks. Call `departed` once it is on its way."""
        changes: Changes = {}
        known: dict[str, Any] = {}
        self._modules = len(sys.modules)
        for kind in kinds():
            if not kind.is_here():
                if kind.name in self._waiting and kind.name not in self._known:
                    changes[kind.name] = list(self._waiting[kind.name])
                    known[kind.name] = _WAITING
                continue
            try:
                before = self._before(kind)
                now = kind.look()
                if now == before:
                    continue
                changes[kind.name] = [pickle.dumps(kind.difference(before, now), protocol=5)]
            except Exception as error:  # a value that does not pickle, a library that was patched
                self._say_that_it_stays(kind, error)
                continue
            known[kind.name] = now
        return Departing(changes, known)

    def _say_that_it_stays(self, kind: Kind, error: Exception) -> None:
        if kind.name not in self._told:
            self._told.add(kind.name)
            warn(f"{kind.title} could not be sent to the other kernel ({type(error).__name__}: {error})")

    def departed(self, departing: Departing) -> None:
        self._known.update(departing.known)

    def settle(self, rebuilt: bool) -> None:
        """What is here now is so at the other end, too: what was imported to set up the state, and what code of the
        student's has done to it while objects were `rebuilt`.
        """
        if rebuilt or len(sys.modules) != self._modules:
            self.departed(self.depart())

    def land(self, changes: Changes) -> list[str]:
        """Does what the other end said. Returns a line for each kind that could not be brought up to date."""
        troubles: list[str] = []
        for kind in kinds():
            differences = changes.get(kind.name)
            if not differences:
                continue
            if kind.is_here():
                troubles += self._apply(kind, differences)
            else:
                self._wait(kind, differences)
        return troubles

    def way_back(self, changes: Changes) -> Callable[[], None]:
        """What takes back the landing of these, which is about to happen."""
        before: dict[Kind, Any] = {}
        for kind in kinds():
            if kind.name in changes and kind.is_here():
                with suppress(Exception):  # as in `depart`
                    before[kind] = kind.look()
        waiting = dict(self._waiting)

        def undo() -> None:
            for kind, then in before.items():
                with suppress(Exception):
                    kind.apply(pickle.loads(pickle.dumps(kind.difference(kind.look(), then), protocol=5)))
            self._waiting = waiting

        return undo

    def _before(self, kind: Kind) -> Any:
        if kind.name not in self._known:
            self._known[kind.name] = kind.fresh()
        return self._known[kind.name]

    def _apply(self, kind: Kind, differences: list[bytes]) -> list[str]:
        troubles = []
        try:
            for difference in differences:
                troubles += kind.apply(pickle.loads(difference)) or []
        except Exception as error:  # whatever a library raises that is another version here
            troubles.append(f"{kind.title} could not be updated ({type(error).__name__}: {error})")
        try:
            self._known[kind.name] = kind.look()
        except Exception:  # then it is not looked at again before it can be
            self._known.pop(kind.name, None)
        return troubles

    def _wait(self, kind: Kind, differences: list[bytes]) -> None:
        """Until something here imports the library."""
        if kind.name not in self._waiting:
            from baton_shim.base import late

            late.when_imported(kind.module, lambda: self._arrived(kind))
        earlier = [] if kind.whole else self._waiting.get(kind.name, [])
        self._waiting[kind.name] = [*earlier, *differences]
        self._known[kind.name] = _WAITING

    def _arrived(self, kind: Kind) -> None:
        for line in self._apply(kind, self._waiting.pop(kind.name, [])):
            warn(line)


def warn(line: str) -> None:
    """Below the cell, where its own warnings are."""
    sys.stderr.write(f"warning: {line}\n")


__all__ = ["Changes", "Departing", "Surroundings", "kinds", "warn"]
