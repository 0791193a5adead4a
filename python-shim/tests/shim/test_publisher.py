"""A session's outputs on their way to its worker."""

from __future__ import annotations

import json
import os
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


def publisher_of(link: Any) -> Publisher:
    loop = types.SimpleNamespace(READ=1, add_handler=lambda *_: None)
    return Publisher(link, types.SimpleNamespace(socket=None, schedule=lambda work: work(), io_loop=loop))


def parts(kind: str, content: bytes, *buffers: bytes) -> list[bytes]:
    header = json.dumps({"msg_type": kind}).encode()
    return [b"topic", DELIM, b"signature", header, b"{}", b"{}", content, *buffers]


def published(kind: str, content: bytes, *buffers: bytes) -> dict[str, Any]:
    link = Recorded()
    publisher_of(link).send_multipart(parts(kind, content, *buffers))
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


def test_outputs_of_forked_processes_are_sent_whole_before_the_end_of_the_cell() -> None:
    link = Recorded()
    publisher = publisher_of(link)
    large = b"x" * (8 << 20)
    children = []
    for number in range(3):
        if (child := os.fork()) == 0:
            publisher.send_multipart(parts("display_data", str(number).encode(), large))
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    assert not link.outputs
    publisher.end()
    assert sorted(output["content"] for output in link.outputs) == [b"0", b"1", b"2"]
    assert all(output["buffers"] == [large] for output in link.outputs)
