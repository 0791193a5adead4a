"""Virtual CUDA in this process, for one test at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from baton_shim.virtual import SWITCH
from harness import Pair


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("BATON_VIRTUAL_CUDA", raising=False)
    SWITCH.begin(session=False)
    SWITCH.turn(True)
    yield
    SWITCH.turn(False)


@pytest.fixture(scope="module")
def processes() -> Iterator[Pair]:
    """PyTorch takes seconds to import, so one session process serves all tests of a module."""
    with Pair() as pair:
        yield pair


@pytest.fixture
def pair(virtual: None, processes: Pair) -> Pair:
    """A notebook with virtual CUDA, and its session, in which tensors remain labelled if the machine has no GPU."""
    processes.start_anew()
    return processes
