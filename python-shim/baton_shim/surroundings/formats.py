"""Functions with which IPython formats values, and the notebook's functions with which numpy and pandas format numbers.

All other options of numpy and pandas are in `libraries`.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from baton_shim.base.originals import of_notebook
from baton_shim.surroundings.ipython import shell

if TYPE_CHECKING:
    from baton_shim.base.undoing import OnUndo

_OF_NUMPY = ("formatter", "override_repr")
FLOATS = "display.float_format"

Key = tuple[str, str]
"""Library and option."""


def formats() -> Iterator[tuple[Key, Any]]:
    if "numpy" in sys.modules:
        options = sys.modules["numpy"].get_printoptions()
        for name in _OF_NUMPY:
            if (one := options.get(name)) is not None and is_of_notebook(one):
                yield ("numpy", name), one
    options = getattr(sys.modules.get("pandas._config.config"), "_global_config", {}).get("display", {})
    if (one := options.get("float_format")) is not None and is_of_notebook(one):
        yield ("pandas", FLOATS), one


def give_formats(before: Iterable[Key], now: Mapping[Key, Any], undo: OnUndo) -> None:
    here = dict(formats())
    gone = set(before).intersection(here) - now.keys()
    given = {**dict.fromkeys(gone), **now}
    undo(partial(set_formats, {key: here.get(key) for key in given}))
    set_formats(given)


def set_formats(given: Mapping[Key, Any]) -> None:
    for (library, name), one in given.items():
        if library == "numpy":
            sys.modules["numpy"].set_printoptions(**{name: one})
        else:
            sys.modules["pandas"].set_option(name, one)


def is_of_notebook(one: Any) -> bool:
    return any(map(of_notebook, one.values())) if isinstance(one, dict) else of_notebook(one)


class Printers:
    """Which of IPython's printers are the notebook's: its own functions, and library functions that a cell registered.

    Printers that libraries register themselves are not sent, because each process has its own.
    """

    def __init__(self) -> None:
        self._chosen: dict[int, Any] = {}
        self._usual: dict[str, dict[Any, Any]] = {}

    def watch(self) -> None:
        """Called at the start of a kernel."""
        pretty = importlib.import_module("IPython.lib.pretty")
        for owner in (importlib.import_module("IPython.core.formatters").BaseFormatter, pretty):
            for name in ("for_type", "for_type_by_name"):
                setattr(owner, name, self._noting(getattr(owner, name)))
        self._usual = {place: dict(table) for place, table in of_pretty().items()}

    def _noting(self, register: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(register)
        def noting(*arguments: Any, **named: Any) -> Any:
            if sys._getframe(1).f_globals.get("__name__") == "__main__":
                self.note((*arguments, *named.values()))
            return register(*arguments, **named)

        return noting

    def note(self, printers: Iterable[Any]) -> None:
        self._chosen.update((id(one), one) for one in printers if callable(one) and not of_notebook(one))

    def is_chosen(self, place: str, key: Any, one: Any) -> bool:
        return id(one) in self._chosen and one is not self.usual(place, key)

    def tables(self) -> dict[str, dict[Any, Any]]:
        formatters = shell().display_formatter.formatters
        by_type = {kind: formatter.type_printers for kind, formatter in formatters.items()}
        by_name = {f"{kind} by name": formatter.deferred_printers for kind, formatter in formatters.items()}
        return {**by_type, **by_name, **of_pretty()}

    def usual(self, place: str, key: Any) -> Any:
        """IPython's own printer for the key, or None."""
        if place in self._usual:
            return self._usual[place].get(key)
        kind, _, by_name = place.partition(" ")
        formatter = shell().display_formatter.formatters.get(kind)
        if formatter is None:  # not a formatter's table
            return None
        return formatter.trait_defaults("deferred_printers" if by_name else "type_printers").get(key)


PRINTERS = Printers()


def of_pretty() -> dict[str, dict[Any, Any]]:
    """The tables of `IPython.lib.pretty`, with which the text formatter begins."""
    pretty = sys.modules["IPython.lib.pretty"]
    names = {"pretty": "_type_pprinters", "pretty by name": "_deferred_type_pprinters"}
    return {place: getattr(pretty, name, {}) for place, name in names.items()}
