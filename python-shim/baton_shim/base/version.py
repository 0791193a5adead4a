"""The version of the package, which is that of the program `baton`."""

from __future__ import annotations

__version__ = "0.1.0"
