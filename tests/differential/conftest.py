"""A fixture for the kernels that run notebooks of the corpus. Each module says which kernels these are (`_kernels`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from differential.notebooks import Kernels


@pytest.fixture
def kernels(_kernels: Kernels, has_failed: Callable[[], bool]) -> Iterator[Kernels]:
    """After a failure, the next notebook gets new kernels."""
    yield _kernels
    if has_failed():
        _kernels.end()
