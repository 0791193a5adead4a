"""Machines for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cuda_libraries.machines import SEED, Machine, machine_with
from end_to_end.gpu_programs import gpu_program


@pytest.fixture(scope="session")
def make() -> str:
    """The program that creates machines."""
    return gpu_program("gpu-machine")


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
