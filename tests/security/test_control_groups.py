"""Sessions in control groups of version 2, which many machines that run tests do not have.

So a separate kernel runs these tests, with an ordinary user to whom a group was delegated.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from end_to_end import guest

TESTS = [
    "tests/security/groups_of_version_2.py",
    "tests/security/test_sandbox.py::test_every_attempt_fails_in_the_sandbox_and_succeeds_without[bubblewrap-forked]",
    "tests/security/test_sandbox.py::test_nothing_is_left_of_a_sandboxed_session[bubblewrap-forked]",
    "tests/security/test_sandbox.py::test_a_cell_beyond_its_memory_is_told_so[bubblewrap-variables]",
    "tests/security/test_sandbox.py::test_a_cell_beyond_its_memory_is_told_so[bubblewrap-memory files]",
    "tests/test_what_follows.py::test_a_later_cell_that_fails_takes_nothing_of_an_earlier_one[http-use up memory]",
]


@pytest.mark.timeout(1000)
def test_on_a_kernel_with_version_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    status, output = guest.run(command, tmp_path)
    assert status == 0, output
    assert re.search(r"^8 passed", output, re.MULTILINE), output
