"""Functions of the notebook with which numpy and pandas write numbers. All else of their options is in `libraries`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from baton_shim.base.originals import of_notebook

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
