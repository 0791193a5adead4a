from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cuda_libraries.machines import SEED, Machine, built, machine_with
from end_to_end.timeshare import BUILT


@pytest.fixture(scope="module")
def make() -> Iterator[str]:
    """The program that creates machines. The worker's end is built, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BUILT, built("--example", "timeshare"))
        yield built("--bin", "gpu-machine")


@pytest.fixture
def machine(tmp_path: Path, make: str) -> Iterator[Machine]:
    """Memory moves at every opportunity."""
    print(f"BATON_TEST_SEED={SEED}")
    with machine_with(tmp_path, make, SEED) as machine:
        yield machine


@pytest.fixture
def calm_machine(tmp_path: Path, make: str) -> Iterator[Machine]:
    """Memory moves only when others need room."""
    with machine_with(tmp_path, make, None) as machine:
        yield machine
