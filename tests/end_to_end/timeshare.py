"""Programs that time-share a GPU without notebooks: the worker's end of `tests/gpu/src/bin/timeshare.rs`."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

from end_to_end.gpu_programs import gpu_program
from end_to_end.place import OUTER_ENVIRONMENT


class Timeshare:
    def __init__(self, process: subprocess.Popen[str], folder: str) -> None:
        self._process, self._folder = process, folder
        self._library = self._answer()
        if not self._library:
            raise RuntimeError("the worker's end did not start")

    def environment(self, session: int) -> dict[str, str]:
        """The variables of each process of a session; the first session is 1."""
        socket = f"{self._folder}/gpu"
        return {"LD_PRELOAD": self._library, "BATON_GPU_SOCKET": socket, "BATON_GPU_TOKEN": f"{session:x}"}

    def started(self, session: int) -> None:
        """The session's cell has started."""
        self._say(f"started {session}")

    def ended(self, session: int) -> None:
        self._say(f"ended {session}")

    def usage(self, session: int) -> dict[str, Any]:
        """The usage since the last call."""
        self._say(f"usage {session}")
        used: dict[str, Any] = json.loads(self._answer())
        return used

    def _say(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _answer(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()


@contextlib.contextmanager
def timeshare(
    sessions: int,
    cap_bytes: int,
    host_bytes: int,
    quantum_ms: int | None = None,
    seed: int | None = None,
    *,
    pins_ahead: bool = True,
) -> Iterator[Timeshare]:
    """Together they may use `cap_bytes` of the GPU. Without a quantum, each session is scheduled like a worker's cell.
    With a seed, memory moves at every opportunity, needed or not. Without `pins_ahead`, host memory is made and pinned
    only while memory moves.
    """
    with tempfile.TemporaryDirectory() as folder:
        numbers = [sessions, cap_bytes, host_bytes, *(one for one in (quantum_ms, seed) if one is not None)]
        command = [gpu_program("gpu-timeshare"), folder, *map(str, numbers)]
        command += [] if pins_ahead else ["--no-pins-ahead"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=OUTER_ENVIRONMENT, **pipes) as process:
            try:
                yield Timeshare(process, folder)
            finally:
                assert process.stdin
                process.stdin.close()
