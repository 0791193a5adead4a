"""Output of a session while the notebook kernel captures output, and the session's questions to the student.

**Invariant:** everything goes through the objects that a cell without Baton would use.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

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


class Question(NamedTuple):
    """What a cell asks the student."""

    prompt: str
    password: bool
    is_over: Callable[[int], bool]
    """Waits until the cell no longer asks, and returns True; or False if its argument, a descriptor, is readable."""


def ask(shell: Any, question: Question, interrupts: Interrupts) -> str | None:
    """What the student typed; `\\x04` for an end of file, as in Jupyter; None after an interrupt or when it is over."""
    kernel = shell.kernel
    return asked(kernel.getpass if question.password else kernel.raw_input, question, interrupts)


def asked(read: Callable[[str], str], question: Question, interrupts: Interrupts) -> str | None:
    """A question that is over ends as one that was interrupted: a late answer goes nowhere."""
    try:
        return interrupts.raising_until(question.is_over, partial(read, question.prompt))
    except EOFError:
        return "\x04"
    except KeyboardInterrupt:
        return None
