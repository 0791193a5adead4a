"""Functions of the notebook with which numpy and pandas write numbers. All else of their options is in `libraries`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from baton_shim.base.originals import of_notebook

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


def give_formats(before: Iterable[Key], now: Mapping[Key, Any]) -> None:
    gone = set(before).intersection(dict(formats())) - now.keys()
    for (library, name), one in {**dict.fromkeys(gone), **now}.items():
        if library == "numpy":
            sys.modules["numpy"].set_printoptions(**{name: one})
        else:
            sys.modules["pandas"].set_option(name, one)


def is_of_notebook(one: Any) -> bool:
    return any(map(of_notebook, one.values())) if isinstance(one, dict) else of_notebook(one)
