"""Processes that a `%%gpu` cell forks and that return from the cell's code."""

from __future__ import annotations

from end_to_end import Kernel


def test_a_fork_takes_no_part_in_the_session(kernel: Kernel) -> None:
    """Otherwise two processes would send the cell's results, and share the later messages between them."""
    kernel.gpu("import os\nvalue = 1\nchild = os.fork()\nif not child:\n    value = 'of the fork'").ok()
    assert kernel.evaluate("value") == 1
    assert kernel.evaluate("child") > 0
    for number in range(2, 6):
        assert kernel.gpu("value += 1\nvalue").ok().value == str(number)


def test_the_output_and_the_error_of_a_fork(kernel: Kernel) -> None:
    body = "import os\nif not (child := os.fork()):\n    print('of the fork')\n    1 / 0"
    result = kernel.gpu(f"{body}\nstatus = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])").ok()
    assert result.stdout.split("\n") == ["of the fork", ""]
    assert "ZeroDivisionError" in result.stderr
    assert kernel.evaluate("status") == 1
