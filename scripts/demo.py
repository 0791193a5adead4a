"""Run one notebook on the kernel "Python (shared GPU)" and show what its cells print.

The notebook's first `%%gpu` cell starts a broker and a worker for this user. They end ten minutes after the last
notebook has closed. Their data is in `target/demo`. A new build gets a new broker and worker.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
BINARY = Path(sys.executable).parent / "baton"
DATA = Path(__file__).parent.parent / "target/demo"


def main() -> int:
    path = Path(sys.argv[1])
    os.environ.update(own_service())
    notebook = nbformat.read(path, as_version=4)
    say(f"{path.name} on the kernel '{notebook.metadata.kernelspec.display_name}'\n")
    client = NotebookClient(
        notebook,
        timeout=300,
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_executed=lambda cell, cell_index, execute_reply: show(cell),
    )
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
        say("The service that ran the %%gpu cells, for ten more minutes:")
        sys.stdout.flush()
        return subprocess.run([BINARY, "status"], check=False).returncode


def own_service() -> dict[str, str]:
    build = BINARY.stat().st_mtime_ns
    # A socket's path must be short, so it cannot be in the checkout.
    runtime = Path(tempfile.gettempdir()) / f"baton-demo-{os.getuid()}-{build:x}"
    return {
        "BATON_RUNTIME_FOLDER": str(runtime),
        "BATON_STATE_FOLDER": str(DATA / "state"),
        "BATON_WORKER_CACHE": str(DATA / "cache"),
    }


def show(cell: Any) -> None:
    if cell.cell_type != "code":
        return
    for line in cell.source.splitlines():
        say(f"    {line}")
    for output in cell.outputs:
        say(text_of(output).rstrip())
    say("")


def text_of(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text)
    if output.output_type == "error":
        return ESCAPES.sub("", "\n".join(output.traceback))
    return str(output.data.get("text/plain", ""))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
