"""The result of a cell: its reply and its messages, in a form that tests compare."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
NOTICE = re.compile(r"[CG]PU: \d|Waiting for |Sending |Starting|Running on |The \w+ did not finish|gpu\.map: ")


@dataclass(frozen=True)
class Result:
    code: str
    reply: dict[str, Any]
    published: list[dict[str, Any]]

    def ok(self) -> Result:
        assert self.reply["status"] == "ok", f"{self.code}\n{self.plain_traceback or self.reply}"
        return self

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The contents of all messages of a kind, in order."""
        return [message["content"] for message in self.published if message["msg_type"] == kind]

    @property
    def stdout(self) -> str:
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        return self._stream("stderr")

    def _stream(self, name: str) -> str:
        return "".join(content["text"] for content in self.of("stream") if content["name"] == name)

    @property
    def outputs(self) -> list[tuple[str, str]]:
        """Everything visible except Baton's own lines: (kind, text) with joined streams."""
        outputs: list[tuple[str, str]] = []
        line_stands = False
        for message in self.published:
            entry = visible(message)
            if entry is None:
                line_stands |= message["msg_type"] == "display_data"
                continue
            if line_stands and not outputs and entry[0] == "clear_output":
                line_stands = False  # the first output removes Baton's line
                continue
            if outputs and outputs[-1][0] == entry[0] in ("stdout", "stderr"):
                entry = (entry[0], outputs.pop()[1] + entry[1])
            outputs.append(entry)
        return outputs

    @property
    def displays(self) -> list[dict[str, Any]]:
        return [content for content in self.of("display_data") if not is_notice(content)]

    @property
    def notices(self) -> list[str]:
        """Baton's own lines, each as it was shown."""
        shown = (
            message["content"]
            for message in self.published
            if message["msg_type"] in ("display_data", "update_display_data")
        )
        return [plain_text(content) for content in shown if is_notice(content)]

    @property
    def summary(self) -> str:
        """The line that says where the cell ran."""
        assert self.notices, f"No line of Baton in {self.outputs}"
        return self.notices[-1]

    @property
    def value(self) -> str | None:
        """The text of `Out[n]`."""
        results = self.of("execute_result")
        assert len(results) <= 1, results
        return plain_text(results[0]) if results else None

    @property
    def error(self) -> tuple[str, str] | None:
        errors = self.of("error")
        assert len(errors) <= 1, errors
        return (errors[0]["ename"], errors[0]["evalue"]) if errors else None

    @property
    def plain_traceback(self) -> str:
        """The text that the student reads, without its colours."""
        lines = self.reply.get("traceback") or [line for error in self.of("error") for line in error["traceback"]]
        return ESCAPES.sub("", "\n".join(lines))


def visible(message: dict[str, Any]) -> tuple[str, str] | None:
    kind, content = message["msg_type"], message["content"]
    if kind == "stream":
        return content["name"], content["text"]
    if kind in ("display_data", "update_display_data", "execute_result"):
        return None if is_notice(content) else (kind, plain_text(content))
    if kind == "error":
        return kind, f"{content['ename']}: {content['evalue']}"
    if kind == "clear_output":
        return kind, "wait" if content["wait"] else "now"
    return None


def plain_text(content: dict[str, Any]) -> str:
    return str(content["data"].get("text/plain", sorted(content["data"])))


def is_notice(content: dict[str, Any]) -> bool:
    return bool(NOTICE.match(plain_text(content)))


def displayed(published: list[dict[str, Any]]) -> list[str]:
    """The final contents below the cell, as a page shows them: texts from top to bottom."""
    shown: list[tuple[str | None, str]] = []
    clears = False
    for message in published:
        kind, content = message["msg_type"], message["content"]
        if kind == "clear_output":
            shown, clears = (shown, True) if content["wait"] else ([], False)
        name = content.get("transient", {}).get("display_id") if "data" in content else None
        if kind == "update_display_data":
            shown = [(of, plain_text(content)) if of == name else (of, text) for of, text in shown]
        elif kind in ("stream", "display_data", "execute_result", "error"):
            shown, clears = [] if clears else shown, False
            entry = visible(message)
            shown.append((name, entry[1] if entry else plain_text(content)))
    return [text for _, text in shown]
