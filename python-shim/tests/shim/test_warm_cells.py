"""What a warm `%%gpu` cell does besides its work, counted, because times vary too much for a test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Baton

WATCH = """
def watch(log):
    import os, sys
    descriptor = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    def note(event, arguments):
        if event in ("open", "os.listdir", "os.scandir", "import", "subprocess.Popen", "os.fork"):
            os.write(descriptor, f"{event} {arguments[0] if arguments else ''}\\n".encode())
    sys.addaudithook(note)
watch(%r)
del watch
"""


@pytest.mark.parametrize("library", ["", "import numpy", "import torch"])
def test_a_warm_cell_reads_no_file_and_lists_no_folder(baton: Baton, tmp_path: Path, library: str) -> None:
    logs = {"notebook": tmp_path / "notebook", "session": tmp_path / "session"}
    baton.run(f"{library}\n" + WATCH % str(logs["notebook"]))
    baton.run(f"%%gpu\n{library}\n" + WATCH % str(logs["session"]))
    for _ in range(5):
        baton.run("%%gpu\npass")
    for log in logs.values():
        log.write_text("")
    for _ in range(3):
        baton.run("%%gpu\npass")
    assert {where: log.read_text() for where, log in logs.items()} == {"notebook": "", "session": ""}
