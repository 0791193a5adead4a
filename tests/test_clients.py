"""One small notebook through the clients that people use: each shows the same.

JupyterLab is tested in `test_browser`.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pexpect
import psutil
import pytest
from end_to_end import Place
from end_to_end.results import ESCAPES
from nbclient import NotebookClient

CELLS = [
    "number = 20\nprint('here', number)",
    "%%gpu --quiet\nnumber += 1\nprint('there', number)\n[number]",
    "%%gpu --quiet\nprint('answer', input(f'{number}? ').upper())",
    "%%gpu --quiet\nnumber / 0",
    "print('after', number)",
]
NOBODY_ANSWERS = "StdinNotImplementedError"
COLOURS = rf"(?:{ESCAPES.pattern})*"
QT_CLIENT = Path(__file__).parent / "end_to_end/qt_client.py"


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    """The errors are intended, so clients continue after them."""
    metadata = {"tags": ["raises-exception"]}
    cells = [nbformat.v4.new_code_cell(code, metadata=metadata) for code in CELLS]
    written = nbformat.v4.new_notebook(cells=cells)
    written.metadata.kernelspec = {"name": "baton", "display_name": "Python (shared GPU)", "language": "python"}
    path = tmp_path / "notebook.ipynb"
    nbformat.write(written, path)
    return path


def check(shown: str, answer: str = NOBODY_ANSWERS) -> None:
    """Checks that all of it is there, in this order."""
    expected = ["here 20", "there 21", "[21]", answer, "ZeroDivisionError", "after 21"]
    assert re.search(".*".join(map(re.escape, expected)), shown, re.DOTALL), shown


def shown_in(path: Path) -> str:
    outputs = [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", [])]
    return "\n".join(output.get("text") or output.get("ename") or output.data["text/plain"] for output in outputs)


def run(place: Place, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 300, "check": False}
    return subprocess.run(command, env=place.environment, cwd=place.work, **options)


def test_nbclient_and_nbval(place: Place, notebook: Path) -> None:
    """nbval compares the cells' output with their earlier output."""
    executed = nbformat.read(notebook, as_version=4)
    NotebookClient(executed, timeout=300, resources={"metadata": {"path": str(notebook.parent)}}).execute()
    nbformat.write(executed, notebook)
    check(shown_in(notebook))
    result = run(place, "-m", "pytest", "--nbval", "-p", "no:cacheprovider", "--rootdir", notebook.parent, notebook)
    assert f"{len(CELLS)} passed" in result.stdout, result.stdout


def test_papermill(place: Place, notebook: Path) -> None:
    done = notebook.with_name("done.ipynb")
    result = run(place, "-m", "papermill", notebook, done, "--no-progress-bar")
    check(shown_in(done))
    assert "ZeroDivisionError" in result.stderr


def test_jupyter_console(place: Place) -> None:
    """The code is typed into its terminal."""
    patience = "--ZMQTerminalInteractiveShell.kernel_is_complete_timeout=120"
    command = ["-m", "jupyter_console", "--kernel=baton", patience]
    # Disables cursor queries, which only a terminal would answer.
    environment = place.environment | {"PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"}
    options: dict[str, Any] = {"env": environment, "cwd": str(place.work), "encoding": "utf-8", "timeout": 120}
    console = pexpect.spawn(sys.executable, command, **options)
    shown = ""

    def until(pattern: str) -> None:
        nonlocal shown
        console.expect(pattern)
        shown += f"{console.before}{console.after}"

    try:
        for number, code in enumerate(CELLS, 1):
            until(rf"In \[{COLOURS}{number}{COLOURS}\]: ")
            console.send(f"\x1b[200~{code}\n\n\x1b[201~\r")  # pasted, then Enter
            if "input" in code:
                until(r"21\? ")  # not part of the code, which the console echoes
                console.sendline("yes")
        until("after 21")
    finally:
        kernel = psutil.Process(console.pid).children()
        console.kill(signal.SIGKILL)
        console.wait()  # `close` gives up after a tenth of a second
        console.close()
        # While it lives, it starts another service in place of one that is asked to end.
        assert not psutil.wait_procs(kernel, timeout=120)[1]
    check(ESCAPES.sub("", shown), "answer YES")


def test_qtconsole_client(place: Place, notebook: Path) -> None:
    """Spyder uses the same client, too; it needs Qt, but no window."""
    result = run(place, QT_CLIENT, notebook)
    assert result.returncode == 0, result.stderr
    check(result.stdout, "answer YES")
