"""Shell commands of cells, `!command`, in a session that gets no terminal.

IPython runs them in a terminal of their own. Where Landlock confines sessions there is none for them: terminals lie in
one folder for all programs of the machine.

**Invariant:** what a command prints is shown while it runs, and no command outlives the cell's interrupt.
"""

from __future__ import annotations

import codecs
import os
import signal
import subprocess
import sys
from functools import cache

PATIENCE = 3.0
"""How many seconds an interrupted command may take to end, and then one that was asked to."""


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
    """Returns its exit status as IPython's `system` does: a negative one names the signal that ended it."""
    shell = os.environ.get("SHELL", "sh")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    nothing, pipe, same = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen([shell, "-c", command], bufsize=0, stdin=nothing, stdout=pipe, stderr=same) as process:
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
        process.send_signal(number)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            continue
        return
    process.kill()
