"""What a block shows in a plain program: its output on the program's own streams, and a status line on a terminal.

**Invariant:** a pipe or a file gets the program's output and nothing else.
"""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

CLEAR_LINE = "\r\x1b[K"


class Terminal:
    def __init__(self) -> None:
        self._has_line = False

    def show(self, output: dict[str, Any]) -> None:
        content = json.loads(output["content"])
        kind = output["kind"]
        if kind == "stream":
            self._write("stderr" if content["name"] == "stderr" else "stdout", content["text"])
        elif kind in ("display_data", "update_display_data", "execute_result"):
            text = content["data"].get("text/plain")
            if text:
                self._write("stdout", f"{text}\n")
        elif kind == "clear_output" and is_terminal(sys.stdout):
            self._write("stdout", CLEAR_LINE)

    def show_status(self, text: str) -> None:
        if not is_terminal(sys.stderr):
            return
        width = shutil.get_terminal_size().columns - 1
        line = " · ".join(text.splitlines())
        sys.stderr.write(f"{CLEAR_LINE}{line if len(line) <= width else f'{line[: width - 1]}…'}")
        sys.stderr.flush()
        self._has_line = True

    def show_summary(self, text: str) -> None:
        """Replaces the status line by the summary. A block that ended without a status line gets no summary."""
        if self._has_line:
            self.show_status(text)
            sys.stderr.write("\n")
            self._has_line = False

    def remove_status(self) -> None:
        if self._has_line:
            sys.stderr.write(CLEAR_LINE)
            sys.stderr.flush()
            self._has_line = False

    def _write(self, name: str, text: str) -> None:
        self.remove_status()
        stream = getattr(sys, name)
        if stream is not None:  # a program may have no streams
            stream.write(text)
            stream.flush()


def is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # there is no stream, or it is closed
        return False
