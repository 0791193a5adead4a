"""A session's outputs on their way to its worker."""

from __future__ import annotations

import json
import types
from typing import Any

from baton_shim.session.publisher import Publisher
from jupyter_client.session import DELIM


class Recorded:
    """A connection that records outputs."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, Any]] = []

    def send(self, name: str, *, listen: bool, output: dict[str, Any]) -> None:
        assert (name, listen) == ("published", False)
        self.outputs.append(output)


def published(kind: str, content: bytes, *buffers: bytes) -> dict[str, Any]:
    link = Recorded()
    thread = types.SimpleNamespace(socket=None, schedule=lambda work: work())
    header = json.dumps({"msg_type": kind}).encode()
    connection: Any = link
    Publisher(connection, thread).send_multipart(
        [b"topic", DELIM, b"signature", header, b"{}", b"{}", content, *buffers]
    )
    (output,) = link.outputs
    return output


def test_an_output_is_sent_as_it_is() -> None:
    expected = {"kind": "display_data", "content": b"{1}", "metadata": b"{}", "buffers": [b"2"]}
    assert published("display_data", b"{1}", b"2") == expected


def test_a_line_replaces_an_output_that_the_worker_would_refuse() -> None:
    large = bytes(20 << 20)
    for output in (published("display_data", large, large), published("comm_msg", b"{}", large, large)):
        assert (output["kind"], output["buffers"]) == ("stream", [])
        assert "left out an output of 40 MiB" in json.loads(output["content"])["text"]
