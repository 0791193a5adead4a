"""What the tests of the object table share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from harness import Pair


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair() as made:
        yield made
