"""The kernel's side of JupyterLab's "Run on GPU in the Background".

Baton's extension (`labextension/src/background.ts`) starts a kernel for this purpose in the notebook's folder, sends it
the request, and ends it. So no part of Baton runs in Jupyter's server, and the notebook's own kernel may be busy or of
another kind.

In: `comm_open` of `baton.run` with `{"notebook": file name}`. Out: `{"job": ..., "notebook": the file of the result}`,
or `{"error": ...}`.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TARGET = "baton.run"
PATIENCE_SECONDS = 30


def listen(shell: Any) -> None:
    shell.kernel.comm_manager.register_target(TARGET, answer)


def answer(comm: Any, message: dict[str, Any]) -> None:
    comm.send(start(str(message["content"]["data"]["notebook"])))
    comm.close()


def start(notebook: str) -> dict[str, Any]:
    """Starts `baton run --detach` for a notebook of this folder."""
    import json
    import subprocess

    from baton_shim.base.binary import find_binary

    if not os.path.isfile(notebook):
        return {"error": f"The kernel's folder {os.getcwd()} has no {notebook}"}
    binary = find_binary()
    if binary is None:
        return {"error": "The program 'baton' was not found beside this Python or on PATH"}
    command = [binary, "run", "--detach", "--json", "--python", sys.executable, os.path.join(".", notebook)]
    try:
        # In a process session of its own, so that signals that end this kernel do not reach the run.
        said = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            start_new_session=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": f"Failed to start {binary}: {error}"}
    if said.returncode != 0:
        return {"error": said.stderr.strip() or f"{binary} ended with status {said.returncode}"}
    answer: dict[str, Any] = json.loads(said.stdout)
    return answer
