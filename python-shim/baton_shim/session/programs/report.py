"""What a job reports to `baton run`, as output of its cell.

Streams are streams, which are joined and bounded on their way. Everything else is a message of Jupyter's protocol,
wrapped in one of another kind: the job's own displays, such as a status line, are not the notebook's, and unlike
displays such a message is never left out where outputs come faster than they can be sent.
"""

from __future__ import annotations

from typing import Any

from IPython import get_ipython

KIND = "baton_run"
"""Also in `runner/src/report.rs`."""


class Report:
    def __init__(self) -> None:
        self._kernel = get_ipython().kernel

    def stream(self, name: str, text: str) -> None:
        self._send("stream", {"name": name, "text": text})

    def message(self, kind: str, content: dict[str, Any], date: str = "") -> None:
        """`date`: of the message, as ISO 8601."""
        self._send(KIND, {"msg_type": kind, "content": content, "date": date})

    def _send(self, kind: str, content: dict[str, Any]) -> None:
        self._kernel.send_response(self._kernel.iopub_socket, kind, content)


class ProgramFailed(Exception):
    """Ends the job as failed. `baton run` has seen the reason already, so nothing is shown of it here."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]
