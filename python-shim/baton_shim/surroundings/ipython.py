"""IPython itself: what was loaded into it, short names for commands, how values and errors are shown."""

from __future__ import annotations

import sys
from typing import Any

from baton_shim.surroundings.kind import Kind, Settings


def shell() -> Any:
    """None where there is none. As `get_ipython`, in a tenth of its time."""
    found: Any = sys.modules.get("IPython.core.interactiveshell")
    return found.InteractiveShell._instance if found else None


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


class Showing(Settings):
    """Which values of a cell are shown, and how values and errors are written: `%pprint`, `%precision`, `%xmode`."""

    name, title = "showing", "How IPython shows values"

    def is_here(self) -> bool:
        return shell() is not None

    def look(self) -> dict[str, Any]:
        this = shell()
        plain = this.display_formatter.formatters["text/plain"]
        found: dict[str, Any] = {name: getattr(plain, name) for name in OF_PLAIN_TEXT}
        found |= {"automagic": this.automagic, "errors": this.InteractiveTB.mode}
        return {"interactivity": this.ast_node_interactivity, **found}

    def fresh(self) -> dict[str, Any]:
        return {"interactivity": "last_expr", "automagic": True, "errors": "Context", **OF_PLAIN_TEXT}

    def set(self, name: str, value: Any) -> None:
        if name == "interactivity":
            shell().ast_node_interactivity = value
        elif name == "automagic":
            shell().automagic = value
        elif name == "errors":
            shell().InteractiveTB.set_mode(mode=value)
        else:
            setattr(shell().display_formatter.formatters["text/plain"], name, value)


# `float_precision` comes first, because it sets the other.
OF_PLAIN_TEXT = {
    "float_precision": "",
    "float_format": "%r",
    "pprint": True,
    "verbose": False,
    "max_width": 79,
    "max_seq_length": 1000,
    "newline": "\n",
}

IPYTHON: tuple[Kind, ...] = (Extensions(), Aliases(), Debugger(), Showing())
