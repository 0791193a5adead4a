"""Shared code of the object table's tests.

Hypothesis tries the same few examples each time. To search among others, until one fails:
`BATON_TEST_EXAMPLES=1500 pytest python-shim/tests/state -k random`
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from harness import Pair

_EXAMPLES = os.environ.get("BATON_TEST_EXAMPLES")
settings.register_profile(
    "baton",
    max_examples=int(_EXAMPLES or 25),
    derandomize=_EXAMPLES is None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
settings.load_profile("baton")


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair() as made:
        yield made


@pytest.fixture(scope="module")
def processes() -> Iterator[Pair]:
    """One pair for all tests of a file, because PyTorch takes seconds to import. They begin with `start_anew`."""
    with Pair() as made:
        yield made
