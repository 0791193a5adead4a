"""What a job reports to `baton run`, as output of its cell.

Streams are sent as streams, which are joined and limited on the way. Everything else is a message of Jupyter's
protocol, wrapped in a message of another kind. So the job's own displays, such as a status line, are not taken for the
notebook's. Unlike displays, such a message is never dropped when outputs come faster than they can be sent.
"""

from __future__ import annotations

from typing import Any

from IPython import get_ipython

KIND = "baton_run"
"""The same constant is in `runner/src/report.rs`."""


class Report:
    def __init__(self) -> None:
        self._kernel = get_ipython().kernel

    def stream(self, name: str, text: str) -> None:
        self._send("stream", {"name": name, "text": text})

    def message(self, kind: str, content: dict[str, Any], date: str = "") -> None:
        """`date`: the date of the message, in ISO 8601."""
        self._send(KIND, {"msg_type": kind, "content": content, "date": date})

    def _send(self, kind: str, content: dict[str, Any]) -> None:
        self._kernel.send_response(self._kernel.iopub_socket, kind, content)


class ProgramFailed(Exception):
    """Ends the job as failed. `baton run` has already shown the reason, so nothing is shown here."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]
