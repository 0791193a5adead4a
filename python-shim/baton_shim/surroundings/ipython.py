"""IPython itself: what was loaded into it, short names for commands, whether errors open the debugger."""

from __future__ import annotations

import sys
from typing import Any

from baton_shim.surroundings.kind import Kind, Settings


def shell() -> Any:
    found: Any = sys.modules.get("IPython.core.getipython")
    return found.get_ipython() if found else None


class Extensions(Settings):
    """One that is not installed at the other end stays where it is."""

    name, title = "extensions", "IPython's extensions"

    def is_here(self) -> bool:
        return shell() is not None

    def look(self) -> dict[str, bool]:
        return dict.fromkeys(shell().extension_manager.loaded, True)

    def fresh(self) -> dict[str, bool]:
        return {"storemagic": True}

    def set(self, name: str, value: Any) -> None:
        try:
            shell().extension_manager.load_extension(name)
        except ModuleNotFoundError as error:
            if error.name != name.partition(".")[0]:
                raise

    def unset(self, name: str) -> None:
        shell().extension_manager.unload_extension(name)


class Aliases(Settings):
    name, title = "aliases", "Aliases"

    def is_here(self) -> bool:
        return shell() is not None

    def look(self) -> dict[str, str]:
        return dict(shell().alias_manager.aliases)

    def fresh(self) -> dict[str, str]:
        from IPython.core.alias import default_aliases

        return dict(default_aliases())

    def set(self, name: str, value: str) -> None:
        shell().alias_manager.define_alias(name, value)

    def unset(self, name: str) -> None:
        shell().alias_manager.undefine_alias(name)


class Debugger(Kind):
    name, title, whole = "pdb", "%pdb", True

    def is_here(self) -> bool:
        return shell() is not None

    def look(self) -> bool:
        return bool(shell().call_pdb)

    def fresh(self) -> bool:
        return False

    def apply(self, difference: bool) -> None:
        shell().call_pdb = difference


IPYTHON: tuple[Kind, ...] = (Extensions(), Aliases(), Debugger())
