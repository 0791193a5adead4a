"""Settings: plain values that a cell depends on, such as random state, options, environment and folder.

Each kind is sent as separate bytes, so that a failure affects only that kind.

**Invariant:** never imports a library that is not imported here. Settings for such a library wait until it is.
"""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from baton_shim.base.compat import FIT
from baton_shim.base.undoing import OnUndo
from baton_shim.surroundings.gpus import GPUS
from baton_shim.surroundings.imports import IMPORTED
from baton_shim.surroundings.ipython import IPYTHON
from baton_shim.surroundings.kind import Kind
from baton_shim.surroundings.part import warn
from baton_shim.surroundings.process import ENVIRONMENT, PATH, PROCESS, environment_at_start, installed_path
from baton_shim.surroundings.warnings_and_logs import WARNINGS_AND_LOGS

Changes = dict[str, list[bytes]]
"""Differences, by the name of their kind."""
_WAITING = object()

# Settings of Python and IPython themselves. Their values at the start of a kernel must be known.
AT_START: tuple[Kind, ...] = (*PROCESS, *WARNINGS_AND_LOGS, *GPUS, *IPYTHON, IMPORTED)


@functools.cache
def kinds() -> tuple[Kind, ...]:
    from baton_shim.surroundings.libraries import LIBRARIES
    from baton_shim.surroundings.plots import PLOTS
    from baton_shim.surroundings.randomness import RANDOMNESS

    return (*AT_START, *LIBRARIES, *PLOTS, *RANDOMNESS)


class Settings:
    name, title = "settings", "Settings"

    def __init__(self) -> None:
        self._start = {kind.name: kind.at_first() for kind in AT_START}
        self._known: dict[str, Any] = dict(self._start)
        self._next: dict[str, Any] = {}
        self._waiting: Changes = {}
        self._reported: set[str] = set()  # kinds that have been reported as staying here
        self._before_first: dict[str, Any] = {}
        """Values before what was applied ahead of a message that is now being read."""
        self._modules = 0  # the number of imported modules at the last look

    def begins_as_program(self) -> None:
        """A session also lacks the folders of the program's own modules, and the variables that the program has set."""
        self._start |= {PATH.name: installed_path(), ENVIRONMENT.name: environment_at_start()}
        self._known = dict(self._start)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Restores all settings afterwards."""
        before = []
        for kind in kinds():
            with suppress(Exception):  # as in `look`
                if kind.is_here():
                    before.append((kind, kind.look()))
        try:
            yield
        finally:
            for kind, value in before:
                with suppress(Exception):  # as in `look`
                    put_back(kind, value)

    def restart(self) -> None:
        self._known = dict(self._start)

    def look(self) -> Changes | None:
        changes: Changes = {}
        self._next = {}
        self._modules = len(sys.modules)
        for kind in kinds():
            name = kind.name
            if not kind.is_here():
                if name in self._waiting and name not in self._known:
                    changes[name] = list(self._waiting[name])
                    self._next[name] = _WAITING
                continue
            try:
                before = self._before(kind)
                now = kind.look()
                if now == before:
                    continue
                changes[name] = [pickle.dumps(kind.difference(before, now), protocol=5)]
            except Exception as error:  # a value that cannot be pickled, a library that was patched
                self._warn_that_it_is_kept(kind, error)
                continue
            self._next[name] = now
        return changes or None

    def whole(self) -> Changes | None:
        """What a new process lacks. Changes nothing."""
        other = Settings()
        other._start, other._known = self._start, dict(self._start)
        other._waiting, other._reported = self._waiting, self._reported
        return other.look()

    def commit(self, undo: OnUndo) -> None:
        undo(functools.partial(setattr, self, "_known", dict(self._known)))
        self._known |= self._next

    def settle(self, rebuilt: bool) -> None:
        """Marks the present settings as known to the other end.

        They include settings of modules that were imported to restore the state, and changes by the student's code
        while objects were `rebuilt`.
        """
        if rebuilt or len(sys.modules) != self._modules:
            self.look()
            for kind in kinds():
                if kind.found:
                    self._next.pop(kind.name, None)
            self._known |= self._next

    def give_environment_first(self, difference: bytes, undo: OnUndo) -> None:
        """Applies the changes of a message before its objects are read, which may import libraries.

        Variables that were changed here, too, are left to `apply`.
        """
        here, known = ENVIRONMENT.look(), self._before(ENVIRONMENT)
        new, gone = pickle.loads(difference)

        def is_unchanged(name: bytes) -> bool:
            return bool(here.get(name) == known.get(name))

        def take_back() -> None:
            self._before_first.clear()
            put_back(ENVIRONMENT, here)

        undo(take_back)
        self._before_first[ENVIRONMENT.name] = here
        ENVIRONMENT.apply(({name: new[name] for name in new if is_unchanged(name)}, list(filter(is_unchanged, gone))))

    def apply(self, changes: Changes, undo: OnUndo) -> list[str]:
        troubles: list[str] = []
        undo(functools.partial(setattr, self, "_waiting", dict(self._waiting)))
        for kind in kinds():
            differences = changes.get(kind.name)
            if not differences:
                continue
            if kind.is_here():
                with suppress(Exception):  # as in `look`
                    before = self._before_first.pop(kind.name) if kind.name in self._before_first else kind.look()
                    undo(functools.partial(put_back, kind, before))
                troubles += self._apply(kind, differences)
            else:
                self._wait(kind, differences)
        return troubles

    def _warn_that_it_is_kept(self, kind: Kind, error: Exception) -> None:
        if kind.name not in self._reported and kind.module.partition(".")[0] not in FIT.unfit:
            self._reported.add(kind.name)
            reason = f"{type(error).__name__}: {first_line(error)}"
            warn(f"{kind.title} could not be sent to the other kernel ({reason})")

    def _before(self, kind: Kind) -> Any:
        if kind.name not in self._known:
            self._known[kind.name] = kind.at_first()
        return self._known[kind.name]

    def _apply(self, kind: Kind, differences: list[bytes]) -> list[str]:
        troubles = []
        try:
            for difference in differences:
                troubles += kind.apply(pickle.loads(difference)) or []
        except Exception as error:  # any error of a library whose version differs here
            troubles.append(f"{kind.title} could not be updated ({type(error).__name__}: {error})")
        try:
            self._known[kind.name] = kind.look()
        except Exception:  # it is not compared again until it can be read
            self._known.pop(kind.name, None)
        return troubles

    def _wait(self, kind: Kind, differences: list[bytes]) -> None:
        """Delays the differences until something here imports the library."""
        if kind.name not in self._waiting:
            from baton_shim.base import late

            late.when_imported(kind.module, lambda: self._arrived(kind))
        earlier = [] if kind.whole else self._waiting.get(kind.name, [])
        self._waiting[kind.name] = [*earlier, *differences]
        self._known[kind.name] = _WAITING

    def _arrived(self, kind: Kind) -> None:
        for line in self._apply(kind, self._waiting.pop(kind.name, [])):
            warn(line)


def first_line(error: Exception) -> str:
    """Messages of CUDA continue with advice about debugging."""
    return str(error).partition("\n")[0]


def put_back(kind: Kind, before: Any) -> None:
    now = kind.look()
    if now != before:
        kind.apply(kind.difference(now, before))
