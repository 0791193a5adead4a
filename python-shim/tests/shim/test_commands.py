"""Shell commands of sessions that cannot open a terminal."""

from __future__ import annotations

import os
import select

import pytest
from baton_shim.session import commands

SECONDS = 100.0


def test_an_interrupt_ends_all_processes_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptors = []

    def interrupt(text: str) -> None:
        if text.strip().isdigit():
            descriptors.append(os.pidfd_open(int(text)))
            raise KeyboardInterrupt

    monkeypatch.setattr(commands, "_show", interrupt)
    # A shell without job control lets its background processes ignore SIGINT.
    assert commands.run("sleep 60 & echo $!; wait") < 0
    (descriptor,) = descriptors
    try:
        assert select.select([descriptor], [], [], SECONDS)[0], "The background process is left"
    finally:
        os.close(descriptor)
