"""The version of the package and of the program `baton`."""

from __future__ import annotations

__version__ = "0.1.0"
