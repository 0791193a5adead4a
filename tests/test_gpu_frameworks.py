"""With a real NVIDIA GPU: frameworks with time-sharing, two programs at a time that need more memory than there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from end_to_end.frameworks import EXPANDABLE, WORK, take_turns

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", WORK)
def test_frameworks_find_their_memory_as_they_left_it_and_nothing_passes_the_gate(name: str, tmp_path: Path) -> None:
    assert take_turns(tmp_path, name, 2.5, {}) >= 4


def test_memory_that_pytorch_maps_itself_moves_too(tmp_path: Path) -> None:
    assert take_turns(tmp_path, "eager", 2.5, EXPANDABLE) >= 4
