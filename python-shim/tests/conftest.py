"""Hypothesis tries the same examples each time, whatever other tests this process has run.

It also draws numbers and texts from the source of all local modules that are loaded. Here it draws none of these.
"""

from __future__ import annotations

from hypothesis.internal.conjecture import providers

assert callable(providers._get_local_constants)
assert hasattr(providers, "_local_constants")
providers._get_local_constants = lambda: providers._local_constants
