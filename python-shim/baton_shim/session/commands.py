"""Shell commands of cells (`!command`) in a session that cannot open a terminal.

IPython runs each command in a pseudoterminal. Sessions under Landlock cannot open one, because the terminals of all
programs of the machine are in one folder.

**Invariant:** output is shown while a command runs. If the cell is interrupted, the command ends with everything in
its process group.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import subprocess
import sys
from functools import cache

PATIENCE = 3.0
"""How many seconds a shell may take to end after SIGINT, and then after SIGTERM, before its process group is killed."""


@cache
def has_terminals() -> bool:
    try:
        ends = os.openpty()
    except OSError:
        return False
    for end in ends:
        os.close(end)
    return True


def run(command: str) -> int:
    """Runs a command and shows its output.

    Returns its exit status like IPython's `system`: a negative one is the number of the signal that ended it.
    """
    shell = os.environ.get("SHELL", "sh")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    nothing, pipe, same = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(
        [shell, "-c", command], bufsize=0, stdin=nothing, stdout=pipe, stderr=same, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            while said := process.stdout.read(1 << 16):
                _show(decoder.decode(said))
            _show(decoder.decode(b"", final=True))
        except KeyboardInterrupt:
            _show("^C\n")
            _end(process)
    status = process.returncode
    return 128 - status if status > 128 else status


def _show(text: str) -> None:
    print(text, end="")
    sys.stdout.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
            break
    with contextlib.suppress(ProcessLookupError):  # its processes may all have ended
        os.killpg(process.pid, signal.SIGKILL)
