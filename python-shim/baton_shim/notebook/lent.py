"""What a background cell was lent by the notebook, and whether other code touches it.

**Invariant:** in case of doubt, it counts as touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from types import ModuleType
from typing import Any, NamedTuple

from baton_shim.base.closure import reach
from baton_shim.notebook.analysis import LOOK_UP, PLAIN_MAGICS, CellNames
from baton_shim.state.footprint import Footprint


class Uses(NamedTuple):
    """Names that some code may use, including those used by functions that it can call."""

    reads: Set[str]
    writes: Set[str]
    """Names that it may bind or delete."""
    anything: bool
    """Its text does not show what it uses."""


def uses_of(names: CellNames, namespace: Mapping[str, Any], visible: Set[str], objects: Iterable[object] = ()) -> Uses:
    direct = names.loads | (names.hinted & visible)
    bound = names.hinted if names.magics else set()  # `%%capture output`
    reached = reach(direct & namespace.keys(), namespace, objects)
    return Uses(
        reads=direct | reached.names,
        writes=names.stores | names.deletes | reached.binds | bound,
        anything=names.everything
        or names.dynamic
        or names.star_import
        or reached.everything
        or reached.dynamic
        or not names.magics <= PLAIN_MAGICS
        or not LOOK_UP.isdisjoint(names.loads),
    )


class Lent:
    """What one background cell may still change or read."""

    def __init__(self, uses: Uses) -> None:
        self.uses, self.held = uses, Footprint()

    def add(self, names: Set[str], held: Footprint) -> None:
        """Lends it these, too."""
        self.uses = self.uses._replace(reads=self.uses.reads | names)
        self.held.update(held)

    def names(self) -> Set[str]:
        return self.uses.reads | self.uses.writes

    def touched_by(self, uses: Uses, reach: Callable[[], Footprint], namespace: Mapping[str, Any]) -> str | None:
        """The reason that code with these uses has to wait, as text after the cell's title; None: it need not wait.

        `reach` looks at all that the code reaches, so it is called only if the names do not decide it.
        """
        if uses.anything:
            return " (this cell may use any variable)"
        if self.uses.anything:
            return " and may use any variable"
        common = (uses.reads & self.uses.writes) | (uses.writes & self.names())
        # Cells often import a module that another cell has imported.
        common = {name for name in common if not isinstance(namespace.get(name), ModuleType)}
        if common:
            return f" and uses '{min(common)}'"
        reached = reach()
        found = reached.common(self.held)
        if found is not None:
            name = next((name for name in sorted(self.uses.reads) if namespace.get(name) is found), None)
            return f" and uses {repr(name) if name else 'an object that this cell can reach'}"
        if reached.opaque is not None:
            return f" (Baton cannot tell what a {type(reached.opaque).__qualname__} of this cell refers to)"
        return None
