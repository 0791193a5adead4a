"""What a session publishes while the notebook kernel captures output, and its questions to the student.

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
"""A message is a topic, which may be absent, a delimiter, a signature, and then its header."""


class Published:
    """Knows the last message that this kernel has put on iopub, so that the proxy shows a cell's output after it."""

    def __init__(self, thread: IOPubThread) -> None:
        self._front: list[bytes] = []
        send = thread.send_multipart

        @functools.wraps(send)
        def noting(parts: list[Any], *arguments: Any, **options: Any) -> None:
            self._front = parts[:HEADER_WITHIN]
            send(parts, *arguments, **options)

        thread.send_multipart = noting

    def last_id(self) -> str | None:
        """Of the last message, once what was printed until now is on its way."""
        sys.stdout.flush()
        sys.stderr.flush()
        front = self._front
        if DELIM not in front:
            return None
        message_id: str = json.loads(front[front.index(DELIM) + 2])["msg_id"]
        return message_id


def captured(shell: Any) -> bool:
    """Whether output that goes past this kernel would escape from `%%capture`, `redirect_stdout` or a hook."""
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
    else:  # comm messages: nothing captures them
        publish_past_capture(shell, output)


def publish_past_capture(shell: Any, output: dict[str, Any], parent: dict[str, Any] | None = None) -> None:
    """Below the cell of this request; None: below the one that runs."""
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
    """What the student typed; an end of file as Jupyter writes it; None after an interrupt."""
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
