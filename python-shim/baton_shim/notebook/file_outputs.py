"""Turns iopub messages into the outputs of a cell in a notebook's file.

**Invariant:** pure.
"""

from __future__ import annotations

import json
from typing import Any

KEYS = {
    "display_data": ("data", "metadata"),
    "execute_result": ("data", "metadata", "execution_count"),
    "error": ("ename", "evalue", "traceback"),
}


class FileOutputs:
    """What a page would have made of the messages. See
    https://jupyter-client.readthedocs.io/en/stable/messaging.html#messages-on-the-iopub-pub-sub-channel"""

    def __init__(self) -> None:
        self.outputs: list[dict[str, Any]] = []
        self._displays: dict[str, list[dict[str, Any]]] = {}
        self._clears = False

    def add(self, kind: str, content: dict[str, Any] | str | bytes) -> None:
        """`content` may be JSON text."""
        if isinstance(content, (str, bytes)):
            content = json.loads(content)
        assert isinstance(content, dict)
        display = (content.get("transient") or {}).get("display_id")
        if kind == "clear_output":
            self._clears = True
            if not content.get("wait"):
                self._clear()
        elif kind == "update_display_data":
            for output in self._displays.get(str(display), []):
                output.update({key: content[key] for key in KEYS["display_data"]})
        elif kind == "stream":
            self._clear()
            self._add_text(content["name"], content["text"])
        elif kind in KEYS:
            self._clear()
            output = {"output_type": kind, **{key: content[key] for key in KEYS[kind]}}
            self.outputs.append(output)
            if display is not None:
                self._displays.setdefault(display, []).append(output)

    def _add_text(self, name: str, text: str) -> None:
        last = self.outputs[-1] if self.outputs else {}
        if last.get("output_type") == "stream" and last["name"] == name:
            last["text"] += text
        else:
            self.outputs.append({"output_type": "stream", "name": name, "text": text})

    def _clear(self) -> None:
        """Clears the outputs if that is due."""
        if self._clears:
            self.outputs.clear()
            self._displays.clear()
        self._clears = False
