"""Versions that are newer than any that the tests have run with: everything may work there, and the notebook says so.

Whatever is older than supported is refused by pip (`pyproject.toml`) or left as it is (`virtual`).
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
"""By module: what people call it, and the newest tested version. Fix releases and, with one number, minor ones are not
told apart.
"""
NEWEST_PYTHON = (3, 14)

_said: set[str] = set()


def news() -> str | None:
    """One line about the loaded libraries that it has not named yet; None: there are none."""
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
    """Of "2.15.1+cu130" the first so many; none where it does not begin with a number."""
    found = []
    for part in version.split(".")[:count]:
        if not part.isdecimal():
            break
        found.append(int(part))
    return tuple(found)
