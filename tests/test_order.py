"""Many cells at once, half of them `%%gpu`, on a busy machine: every message is in its place.

Set `BATON_TEST_CELLS=10000` for a longer search.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from end_to_end import Kernel

CELLS = int(os.environ.get("BATON_TEST_CELLS", "200"))
AT_ONCE = 20
FRONTS = ("", "%%gpu\n")


@pytest.fixture
def _busy_machine() -> Iterator[None]:
    with ExitStack() as burning:
        for _ in range(os.cpu_count() or 1):
            process = burning.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            burning.callback(process.kill)
        yield


@pytest.mark.timeout(600 + CELLS)
@pytest.mark.usefixtures("_busy_machine")
def test_order_of_many_cells(kernel: Kernel) -> None:
    for first in range(0, CELLS, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, CELLS))
        cells = [
            kernel.begin(f"{FRONTS[number % 2]}print({number})\ndisplay({number})\nprint({number})")
            for number in numbers
        ]
        for number, cell in zip(numbers, cells, strict=True):
            result = cell.finish().ok()  # it refuses output after idle
            text = f"{number}\n"
            assert result.outputs == [("stdout", text), ("display_data", str(number)), ("stdout", text)]
            kinds = [message["msg_type"] for message in result.published]
            assert kinds[0] == "execute_input"
            assert Counter(kinds)["execute_input"] == 1
