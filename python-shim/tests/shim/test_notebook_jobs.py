"""The notebook of `baton run`, in a session: interrupts lose nothing, and no folder is left."""

from __future__ import annotations

import os
import signal
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conftest import Baton, Cell

SAVES = """\
import time
print("runs", flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    print("first", flush=True)
    _ = open("checkpoint.txt", "w").write("saved")
    print("last", flush=True)
"""
"""A cell that saves its state when it is stopped."""


def job(*cells: str, **options: Any) -> str:
    listed = [(number, source, False) for number, source in enumerate(cells)]
    arguments = "".join(f", {name}={value!r}" for name, value in options.items())
    module = "baton_shim.session.programs.notebook"
    return f"%%gpu\nfrom {module} import run_notebook\nrun_notebook({listed!r}{arguments})"


def run_and_stop(baton: Baton, code: str) -> Cell:
    return baton.run(code, interrupt_when=lambda: "runs" in baton.remote_text())


def reported(baton: Baton, kind: str) -> list[dict[str, Any]]:
    reports = [content for name, content in baton.remote if name == "baton_run"]
    return [report["content"] for report in reports if report["msg_type"] == kind]


def test_a_cell_that_catches_the_interrupt_ends_the_job(baton: Baton) -> None:
    stopped = run_and_stop(baton, job("kept = 1", SAVES, "print('never')", keep="this"))
    assert stopped.error.startswith("KeyboardInterrupt")
    assert baton.remote_text() == "runs\nfirst\nlast\n"
    assert (baton.folder / "checkpoint.txt").read_text() == "saved"
    assert reported(baton, "cell") == [{"number": 0}, {"number": 1}]
    assert reported(baton, "kept") == [{}]
    went_on = baton.run(job("kept = 0", "pass", "print(kept)", keep="this", begin=2))
    assert went_on.reply["status"] == "ok", went_on.traceback
    assert reported(baton, "resumed") == [{"why": None}]
    assert baton.remote_text() == "1\n"


def test_a_cell_that_is_stopped_shows_where(baton: Baton) -> None:
    stopped = run_and_stop(baton, job("import time\nprint('runs', flush=True)\ntime.sleep(600)"))
    assert stopped.error.startswith("KeyboardInterrupt")
    (error,) = reported(baton, "error")
    assert error["ename"] == "KeyboardInterrupt"


def test_each_interrupt_reaches_the_cell(baton: Baton) -> None:
    cell = "import os, time\nfor _ in range(3):\n    try:\n        print('runs', flush=True)\n"
    cell += "        time.sleep(600)\n    except KeyboardInterrupt:\n        print('caught', flush=True)\n"
    sent = 0

    def interrupts() -> bool:
        nonlocal sent
        if baton.remote_text().count("runs") > sent:
            sent += 1
            if sent < 3:
                assert baton.session is not None
                os.kill(baton.session.pid, signal.SIGINT)
        return sent == 3

    stopped = baton.run(job(cell), interrupt_when=interrupts)
    assert stopped.error.startswith("KeyboardInterrupt")
    assert baton.remote_text() == "runs\ncaught\n" * 3


def test_the_kernel_of_a_notebook_leaves_no_folder(baton: Baton) -> None:
    with tempfile.TemporaryDirectory(prefix="t") as folder:  # paths of sockets must be short
        elsewhere = f"import os, tempfile\ntempfile.tempdir = {folder!r}\n"
        ran = baton.run(job(f"import os\nprint(os.listdir({folder!r}))").replace("%%gpu\n", f"%%gpu\n{elsewhere}"))
    assert ran.reply["status"] == "ok", ran.traceback
    assert baton.remote_text() == "[]\n"
