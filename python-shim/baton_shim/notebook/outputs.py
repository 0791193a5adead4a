"""Output of a session while the notebook kernel captures output, and the session's questions to the student.

**Invariant:** everything goes through the objects that a cell without Baton would use.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jupyter_client.session import DELIM

from baton_shim.base.interrupts import Interrupts

if TYPE_CHECKING:
    from ipykernel.iostream import IOPubThread

HEADER_WITHIN = 4
"""The parts before a message's header: a topic, which may be absent, a delimiter and a signature."""


class Published:
    """Knows the last message that this kernel has sent on iopub, so that the proxy shows a cell's output after it."""

    def __init__(self, thread: IOPubThread) -> None:
        self._front: list[bytes] = []
        send = thread.send_multipart

        @functools.wraps(send)
        def noting(parts: list[Any], *arguments: Any, **options: Any) -> None:
            self._front = parts[:HEADER_WITHIN]
            send(parts, *arguments, **options)

        thread.send_multipart = noting

    def last_id(self) -> str | None:
        """The id of the last message, after everything printed so far."""
        sys.stdout.flush()
        sys.stderr.flush()
        front = self._front
        if DELIM not in front:
            return None
        message_id: str = json.loads(front[front.index(DELIM) + 2])["msg_id"]
        return message_id


def captured(shell: Any) -> bool:
    """Whether output that bypasses this kernel would escape from `%%capture`, `redirect_stdout` or a hook."""
    from ipykernel.iostream import OutStream
    from IPython.core.displaypub import CapturingDisplayPublisher

    publisher = shell.display_pub
    streams = (sys.stdout, sys.stderr)
    return (
        isinstance(publisher, CapturingDisplayPublisher)
        or any(not isinstance(stream, OutStream) for stream in streams)
        or any(getattr(place, "_hooks", None) for place in (publisher, *streams))
    )


def plain(kind: str, content: str) -> dict[str, Any]:
    """An output without metadata or buffers; `content` is JSON text."""
    return {"kind": kind, "content": content, "metadata": b"", "buffers": []}


def publish(shell: Any, output: dict[str, Any]) -> None:
    kind = output["kind"]
    content = json.loads(output["content"])
    if kind == "stream":
        stream = sys.stderr if content["name"] == "stderr" else sys.stdout
        stream.write(content["text"])
    elif kind in ("display_data", "update_display_data"):
        shell.display_pub.publish(
            content["data"],
            content.get("metadata"),
            transient=content.get("transient"),
            update=kind == "update_display_data",
        )
    elif kind == "clear_output":
        shell.display_pub.clear_output(wait=content.get("wait", False))
    else:  # comm messages cannot be captured
        publish_past_capture(shell, output)


def publish_past_capture(shell: Any, output: dict[str, Any], parent: dict[str, Any] | None = None) -> None:
    """Shows the output below the cell of the `parent` request; None: below the running cell."""
    kernel = shell.kernel
    kernel.session.send(
        kernel.iopub_socket,
        output["kind"],
        json.loads(output["content"]),
        parent=kernel.get_parent("shell") if parent is None else parent,
        metadata=json.loads(output["metadata"] or b"{}"),
        buffers=output["buffers"],
    )


def ask(shell: Any, prompt: str, password: bool, interrupts: Interrupts) -> str | None:
    """What the student typed; `\\x04` for an end of file, as in Jupyter; None after an interrupt."""
    kernel = shell.kernel
    return asked(kernel.getpass if password else kernel.raw_input, prompt, interrupts)


def asked(read: Callable[[str], str], prompt: str, interrupts: Interrupts) -> str | None:
    try:
        with interrupts.raising():
            return read(prompt)
    except EOFError:
        return "\x04"
    except KeyboardInterrupt:
        interrupts.count += 1
        return None
