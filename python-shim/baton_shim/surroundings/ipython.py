"""Settings of IPython: loaded extensions, aliases, how values and errors are shown."""

from __future__ import annotations
import __future__

import importlib
import os
import sys
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from baton_shim.base.here import PROGRAM
from baton_shim.base.local_modules import AUTORELOAD, autoreloader, is_own_module
from baton_shim.surroundings.kind import Kind, entries, rows

if TYPE_CHECKING:
    from baton_shim.base.undoing import OnUndo


def shell() -> Any:
    """The shell, or None. Ten times as fast as `get_ipython`."""
    if PROGRAM.shell is not None:
        return PROGRAM.shell
    found: Any = sys.modules.get("IPython.core.interactiveshell")
    return found.InteractiveShell._instance if found else None


def load(_: Any, name: str, loaded: bool) -> None:
    """An extension that the other end does not have stays loaded only here."""
    try:
        shell().extension_manager.load_extension(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise


def with_magics(_: Any) -> dict[str, bool]:
    """The student's own modules whose functions or methods are magics, because importing them registered these."""
    found: dict[str, bool] = {}
    for magics in shell().magics_manager.magics.values():
        for one in magics.values():
            # No attribute of other objects is looked up: IPython's stand-in for a magic would import the magic.
            owner = one if isinstance(one, FunctionType) else type(one.__self__ if isinstance(one, MethodType) else one)
            if is_own_module(owner.__module__):
                found[owner.__module__] = True
    return found


# Of IPython's `ModuleReloader`, with their first values: what `%autoreload` and `%aimport` set.
AUTORELOADS = {
    "enabled": False,
    "check_all": False,
    "autoload_obj": False,
    "hide_errors": False,
    "modules": {},
    "skip_modules": {},
}


def autoreloads(_: Any) -> dict[str, Any]:
    reloader = autoreloader()
    return {
        name: dict(value) if isinstance(value := getattr(reloader, name, fresh), dict) else value
        for name, fresh in AUTORELOADS.items()
    }


def set_autoreload(_: Any, name: str, value: Any) -> None:
    reloader = autoreloader()
    if hasattr(reloader, name):
        setattr(reloader, name, value)


def usual_aliases(_: Any) -> dict[str, str]:
    from IPython.core.alias import default_aliases

    return dict(default_aliases())


# Of IPython itself, by kind and name: what each calls, and with which parameters.
USUAL_MAGIC_ALIASES = {
    ("line", "ed"): ("edit", None),
    ("line", "hist"): ("history", None),
    ("line", "rep"): ("recall", None),
    ("cell", "SVG"): ("svg", None),
    ("cell", "HTML"): ("html", None),
    ("cell", "file"): ("writefile", None),
}


def magic_aliases(_: Any) -> dict[tuple[str, str], tuple[str, str | None]]:
    from IPython.core.magic import MagicAlias

    magics = shell().magics_manager.magics
    aliases = ((kind, name, one) for kind in magics for name, one in magics[kind].items() if type(one) is MagicAlias)
    return {(kind, name): (one.magic_name, one.magic_params) for kind, name, one in aliases}


def set_magic_alias(_: Any, key: tuple[str, str], value: tuple[str, str | None]) -> None:
    (kind, name), (of, parameters) = key, value
    shell().magics_manager.register_alias(name, of, kind, parameters)


def directory_history(_: Any) -> tuple[str, ...]:
    return tuple(map(str, shell().user_ns.get("_dh", ())))


def set_directory_history(_: Any, folders: tuple[str, ...]) -> None:
    shell().user_ns.setdefault("_dh", [])[:] = folders


def directory_stack(_: Any) -> tuple[str, ...]:
    return tuple(map(os.path.expanduser, shell().dir_stack))  # each machine has its own home folder


def set_directory_stack(_: Any, folders: tuple[str, ...]) -> None:
    shell().dir_stack[:] = folders


def of_plain_text(name: str, fresh: object) -> tuple[Any, ...]:
    def plain() -> Any:
        return shell().display_formatter.formatters["text/plain"]

    # Formatters of other libraries, such as Rich's, lack these settings.
    return name, lambda _: getattr(plain(), name, fresh), lambda _, value: setattr(plain(), name, value), fresh


FEATURES = set(__future__.all_feature_names) - {"nested_scopes"}  # its flag has another meaning today
FUTURES = sum({getattr(__future__, name).compiler_flag for name in FEATURES})


def set_futures(_: Any, flags: int) -> None:
    compiler = shell().compile
    compiler.flags = compiler.flags & ~FUTURES | flags


def of_shell(name: str, fresh: object) -> tuple[Any, ...]:
    return name, lambda _: getattr(shell(), name), lambda _, value: setattr(shell(), name, value), fresh


MODULE = "IPython.core.interactiveshell"

IPYTHON: tuple[Kind, ...] = (
    entries(
        *(
            "extensions",
            "IPython's extensions",
            MODULE,
            lambda _: dict.fromkeys(shell().extension_manager.loaded, True),
        ),
        *(load, lambda _, name: shell().extension_manager.unload_extension(name)),
        fresh={"storemagic": True},
    ),
    entries(*("autoreload", "%autoreload", AUTORELOAD, autoreloads), set_autoreload, fresh=AUTORELOADS),
    entries(
        *("magics", "Magics of your module", MODULE, with_magics),
        lambda _, name, value: importlib.import_module(name),
        fresh={},
    ),
    entries(
        *("aliases", "Aliases", MODULE, lambda _: dict(shell().alias_manager.aliases)),
        lambda _, name, value: shell().alias_manager.define_alias(name, value),
        lambda _, name: shell().alias_manager.undefine_alias(name),
        fresh=usual_aliases,
    ),
    entries(
        *("magic_aliases", "Aliases of magics", MODULE, magic_aliases, set_magic_alias),
        lambda _, key: shell().magics_manager.magics[key[0]].pop(key[1], None),
        fresh=USUAL_MAGIC_ALIASES,
    ),
    # A session begins in a folder of its own, so it always gets the notebook's history.
    *(
        Kind(name, "The directory history", MODULE, get, give, None)
        for name, get, give in (
            ("dhist", directory_history, set_directory_history),
            ("dir_stack", directory_stack, set_directory_stack),
        )
    ),
    *rows(
        "from __future__ import",
        MODULE,
        ("futures", lambda _: shell().compile.flags & FUTURES, set_futures, 0),
    ),
    # Which values of a cell are shown, and how values and errors are formatted: `%pprint`, `%precision`, `%xmode`.
    *rows(
        "How IPython shows values",
        MODULE,
        of_shell("call_pdb", False),
        of_shell("ast_node_interactivity", "last_expr"),
        of_shell("automagic", True),
        (
            "errors",
            lambda _: shell().InteractiveTB.mode,
            lambda _, mode: shell().InteractiveTB.set_mode(mode=mode),
            "Context",
        ),
        of_plain_text("float_precision", ""),  # first, because it sets the other
        of_plain_text("float_format", "%r"),
        of_plain_text("pprint", True),
        of_plain_text("verbose", False),
        of_plain_text("max_width", 79),
        of_plain_text("max_seq_length", 1000),
        of_plain_text("newline", "\n"),
    ),
)


class ErrorHandler:
    """What a session's cell gave to `set_custom_exc`. Errors of cells are handled in the notebook."""

    name, title = "error_handler", "The handler of errors"

    def look(self) -> tuple[Any, Any] | None:
        found: tuple[Any, Any] | None = getattr(shell(), "custom_handler", None)
        return found

    def commit(self, undo: OnUndo) -> None:
        shell().custom_handler = None

    def apply(self, difference: Any, undo: OnUndo) -> None:
        this = shell()
        undo(partial(vars(this).update, {name: getattr(this, name) for name in ("CustomTB", "custom_exceptions")}))
        this.set_custom_exc(*difference)

    def restart(self) -> None:
        pass
