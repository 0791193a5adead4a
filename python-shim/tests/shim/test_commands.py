"""Shell commands of sessions that cannot open a terminal."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from baton_shim.session import commands

SECONDS = 20.0


def lives(process: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False


def test_an_interrupt_ends_all_processes_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = []

    def interrupt(text: str) -> None:
        if text.strip().isdigit():
            processes.append(int(text))
            raise KeyboardInterrupt

    monkeypatch.setattr(commands, "_show", interrupt)
    # A shell without job control lets its background processes ignore SIGINT.
    assert commands.run("sleep 60 & echo $!; wait") < 0
    until = time.monotonic() + SECONDS
    while lives(processes[0]):
        assert time.monotonic() < until, "The background process is left"
