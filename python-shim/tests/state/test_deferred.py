"""Which memory stays in the session when a cell ends: memory that may have changed, and no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import Pair

MAKE = {
    "array": "import numpy as np\nx = np.ones(160_000)",
    "tensor": "import torch\nx = torch.ones(160_000)",
    "virtual tensor on a GPU": "import torch\nx = torch.ones(160_000, device='cuda')",
}


@pytest.fixture
def away() -> Iterator[Pair]:
    with Pair(all_deferred=True) as made:
        yield made


@pytest.mark.parametrize("kind", MAKE)
def test_memory_that_a_new_session_only_read_does_not_stay(away: Pair, kind: str) -> None:
    away.remote(MAKE[kind])
    assert away.table.deferred.numbers
    away.receive_deferred()
    away.lose_session()
    for code in ("total = float(x.sum())", "1 / 0", "total += float(x[5])"):
        away.remote(code, "x", *(["total"] if "+=" in code else []))
        assert not away.table.deferred.numbers and away.table.deferred.names() == []
        assert not away.read_again
    assert away.namespace["total"] == 160_001
    away.remote("x[7] = 5", "x")
    assert away.table.deferred.numbers and away.table.deferred.names() == ["x"]
    assert away.table.deferred.may_be_unchanged() == ("GPU" in kind)
    away.remote("y = 1", "x")
    assert away.table.deferred.names() == ["x", "y"] and not away.table.deferred.may_be_unchanged()
    away.receive_deferred()
    assert float(away.namespace["x"].sum()) == 160_004


def test_names_of_what_both_kernels_have_anyway(away: Pair) -> None:
    away.local("import sys, numpy as np\npath = sys.path\nx = np.ones(160_000)")
    away.remote("x += 1", "x", "path")
    assert away.table.deferred.names() == ["x"]
