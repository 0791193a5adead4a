"""Reports versions that are newer than those that the tests have run with. They may well work.

pip refuses versions that are too old (`pyproject.toml`), or they are left as they are (`virtual`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

NEWEST = {
    "IPython": ("IPython", (9,)),
    "ipykernel": ("ipykernel", (7,)),
    "numpy": ("NumPy", (2,)),
    "pandas": ("pandas", (3,)),
    "torch": ("PyTorch", (2, 15)),
}
"""By module: its usual name, and the newest tested version. Fix releases are not distinguished, nor minor releases if
one number is given.
"""
NEWEST_PYTHON = (3, 14)

_said: set[str] = set()


def news() -> str | None:
    """One line about loaded libraries that have not been reported yet; None: there are none."""
    fresh = [text for text in untested() if text not in _said]
    _said.update(fresh)
    return f"Baton is not tested yet with {' and '.join(fresh)}; please report what does not work" if fresh else None


def untested() -> Iterator[str]:
    if sys.version_info[:2] > NEWEST_PYTHON:
        yield "Python {}.{}".format(*sys.version_info)
    for module, (name, newest) in NEWEST.items():
        version = str(getattr(sys.modules.get(module), "__version__", ""))
        if numbers(version, len(newest)) > newest:
            yield f"{name} {version}"


def numbers(version: str, count: int) -> tuple[int, ...]:
    """The first `count` numbers of a version such as "2.15.1+cu130"; fewer if something else comes first."""
    found = []
    for part in version.split(".")[:count]:
        if not part.isdecimal():
            break
        found.append(int(part))
    return tuple(found)
