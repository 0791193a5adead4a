"""What a cell depends on besides its variables: settings, figures, loggers, hooks, comms, modules.

They are parts of one transaction (`part.py`). What `look` finds is sent in a message of the object table and is
committed with that message. If the other end rolls the message back, it rolls them back with its variables.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from baton_shim.base.undoing import Action, OnUndo, take_back
from baton_shim.surroundings.formats import PRINTERS
from baton_shim.surroundings.jax_settings import JAX
from baton_shim.surroundings.part import Part, warn
from baton_shim.surroundings.patches import Patches
from baton_shim.surroundings.process import ENVIRONMENT
from baton_shim.surroundings.registered import REGISTERED
from baton_shim.surroundings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton_shim.base.local_modules import LocalModules


class Difference(NamedTuple):
    modules: bytes | None
    """What the other end must know before it reads anything else."""
    parts: dict[str, Any]
    """By the name of their part. Objects in it are objects of the notebook like any other."""


class Surroundings:
    """One end's view of the surroundings of both ends."""

    def __init__(self, namespace: Mapping[str, Any], modules: LocalModules, log_files: Part) -> None:
        """`log_files`: those of this end."""
        JAX.watch()
        REGISTERED.watch()
        PRINTERS.watch()
        self.namespace = namespace
        self.modules = modules
        self._log_files = log_files
        self.settings = Settings()
        modules.give_environment = self.settings.give_environment_first
        self.patches = Patches()

    @functools.cached_property
    def _parts(self) -> list[Part]:
        from baton_shim.surroundings.figures import Figures
        from baton_shim.surroundings.handlers import Handlers
        from baton_shim.surroundings.hooks import Hooks
        from baton_shim.surroundings.ipython import ErrorHandler

        return [
            self.settings,
            Figures(),
            Handlers(self.namespace),
            self._log_files,
            Hooks(self.patches),
            ErrorHandler(),
        ]

    def add(self, part: Part) -> None:
        self._parts.append(part)

    def titles(self) -> dict[str, str]:
        return {part.name: part.title for part in self._parts}

    def restart(self) -> None:
        """The other end is a new process."""
        self.modules.restart()
        for part in self._parts:
            part.restart()

    def look(self, returns: bool = True) -> Difference:
        """What the other end lacks. Changes nothing if the result is not sent. `returns`: whether it gets any parts."""
        found = ((part.name, part.look()) for part in self._parts if returns)
        parts = {name: one for name, one in found if one is not None}
        (environment,) = (parts.get(self.settings.name) or {}).get(ENVIRONMENT.name, [None])
        return Difference(self.modules.look(environment), parts)

    def whole(self, cells: list[str] | None) -> dict[str, Any]:
        """What a new kernel lacks, as far as it outlives this kernel. Changes nothing for the session.

        With the `cells` of a notebook, also what these attached to libraries, which may reach any variable.
        """
        outlive = {"figures"}
        if cells is not None:
            self.patches.read_new(cells, self.namespace)
            outlive |= {"handlers", "hooks"}
        found = {part.name: part.look() for part in self._parts if part.name in outlive}
        return {name: one for name, one in {"settings": self.settings.whole(), **found}.items() if one}

    def without_changed_here(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """What the other end sent, without anything that this end has changed, too, since it last sent something."""
        here, kept = self.look().parts, dict(said)
        for name, changed in here.items():
            if name == self.settings.name:
                kinds = said.get(name) or {}
                kept[name] = {kind: one for kind, one in kinds.items() if kind not in changed}
            elif name != self._log_files.name:  # its records are new in any case
                kept.pop(name, None)
        return kept

    def commit(self, difference: Difference, undo: OnUndo) -> None:
        """The difference has been sent, in a message of the object table. The undo is for one that no end received."""
        self.modules.commit(undo)
        for part in self._parts:
            if part.name in difference.parts:
                part.commit(undo)

    def apply(self, said: Mapping[str, Any], undo: OnUndo) -> list[str]:
        """Applies the `parts` that the other end sent. Returns a line for each thing that could not be done.

        A part that fails is left as it was before; the others are still applied.
        """
        troubles: list[str] = []
        for part in self._parts:
            if part.name not in said:
                continue
            done: list[Action] = []
            try:
                troubles += part.apply(said[part.name], done.append) or []
            except Exception as error:  # any error of a library whose version differs here
                take_back(done)
                troubles.append(f"{part.title} could not be updated ({type(error).__name__}: {error})")
            except BaseException:
                take_back(done)
                raise
            else:
                undo(functools.partial(take_back, done))
        return troubles


__all__ = ["Difference", "Surroundings", "warn"]
