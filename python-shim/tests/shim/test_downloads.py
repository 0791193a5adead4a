"""Errors of libraries that the tests do not install, with the texts that they had without a network."""

from __future__ import annotations

import os

import pytest
from baton_shim.session import downloads


@pytest.mark.parametrize(
    ("error", "hinted"),
    [
        # datasets 5.2: load_dataset
        (ConnectionError("Couldn't reach 'ylecun/mnist' on the Hub (LocalEntryNotFoundError)"), True),
        (OSError(101, "Network is unreachable"), True),
        (ConnectionError("Dataset 'ylecun/mnist' is gated"), False),
    ],
)
def test_hints(error: Exception, hinted: bool) -> None:
    assert (downloads.hint_for_error(error) is not None) == hinted


def test_a_cause_counts() -> None:
    """huggingface_hub 2.4: hf_hub_download"""
    error = FileNotFoundError("An error happened while trying to locate the file on the Hub")
    error.__cause__ = OSError("[Errno -3] Temporary failure in name resolution")
    assert downloads.hint_for_error(error) is not None


@pytest.mark.parametrize(
    ("command", "exit_code", "hinted"),
    [
        ("pip install -q emoji", 1, True),
        ("python -m pip install emoji", 1, True),
        ("uv pip install emoji", 1, True),
        ("pip install emoji", 0, False),
        ("pip install emoji", os.EX_NOPERM, False),  # refused, with a hint of its own
        ("pip list", 1, False),
    ],
)
def test_a_package_that_is_not_found(command: str, exit_code: int, hinted: bool) -> None:
    assert (downloads.hint_for_command(command, exit_code) == downloads.OF_PACKAGES) == hinted
