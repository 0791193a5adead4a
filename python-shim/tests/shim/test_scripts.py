"""A script of `baton run` ends when it ends, whatever it has started."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
from baton_shim.session.programs import script
from baton_shim.session.programs.script import ProgramFailed, run_script


class FakeReport:
    """Raises KeyboardInterrupt, as Ctrl-C does, when the script has written `ready`."""

    def __init__(self) -> None:
        self.text = ""
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.interrupted = False

    def stream(self, name: str, text: str) -> None:
        self.text += text
        if "ready" in self.text and not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt

    def message(self, kind: str, content: dict[str, Any], date: str = "") -> None:
        self.messages.append((kind, content))


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> FakeReport:
    report = FakeReport()
    monkeypatch.setattr(script, "Report", lambda: report)
    return report


def run(folder: Path, code: str) -> None:
    path = folder / "script.py"
    path.write_text("import os, signal, subprocess, sys\n" + code)
    run_script([str(path)])


def wait_for_end(pid: int) -> None:
    """Waits until the process is dead or a zombie."""
    deadline = time.monotonic() + 60
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while ") Z " not in Path(f"/proc/{pid}/stat").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_what_a_script_leaves_behind_ends_with_it(report: FakeReport, tmp_path: Path) -> None:
    run(tmp_path, "print(subprocess.Popen(['sleep', '600']).pid)")
    wait_for_end(int(report.text))
    assert report.messages == [("exit", {"status": 0})]


def test_a_process_that_left_the_scripts_group_does_not_keep_the_run(report: FakeReport, tmp_path: Path) -> None:
    run(tmp_path, "print('x', flush=True)\nsubprocess.Popen(['yes'], start_new_session=True)")
    assert report.text.startswith("x\n")
    assert report.messages == [("exit", {"status": 0})]


def test_all_that_a_script_wrote_arrives(report: FakeReport, tmp_path: Path) -> None:
    run(tmp_path, "print('ä' * 500_000 + 'end')\nos.write(1, b'\\xc3')")
    assert report.text == "ä" * 500_000 + "end\n\N{REPLACEMENT CHARACTER}"


def test_a_script_goes_on_when_it_has_closed_its_streams(report: FakeReport, tmp_path: Path) -> None:
    with pytest.raises(ProgramFailed, match="status 7"):
        run(tmp_path, "os.close(1), os.close(2)\nsubprocess.run(['true'])\nos._exit(7)")
    assert report.messages == [("exit", {"status": 7})]


def test_ctrl_c_reaches_the_processes_of_a_script(report: FakeReport, tmp_path: Path) -> None:
    # Both processes block the signal and then wait for it, so it may come at any moment. (Python handles a signal only
    # after the system call that begins in that moment, which may wait for ever.)
    child = "import os, signal; os.write(1, b'ready\\n'); signal.sigwait([signal.SIGINT]); os.write(1, b'got it\\n')"
    code = f"""
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
child = subprocess.Popen([sys.executable, "-c", {child!r}])
signal.sigwait([signal.SIGINT])
print("script got it:", child.wait())
"""
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, code)
    assert report.text == "ready\ngot it\nscript got it: 0\n"
