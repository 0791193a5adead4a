"""The private socket, with an other end that is itself in the middle of a frame."""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path

import msgpack
from baton_shim.link import Link

LARGE = b"x" * 4_000_000


def test_both_ends_send_more_than_the_socket_holds(tmp_path: Path) -> None:
    path = os.fspath(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        link = Link(path)
        other, _ = listener.accept()
    received = bytearray()

    def send_all_then_read() -> None:
        document = msgpack.packb({"large": {"text": LARGE}})
        other.sendall(struct.pack(">Q", len(document)) + document)
        while len(received) < len(LARGE):
            received.extend(other.recv(1 << 20))

    with other:
        thread = threading.Thread(target=send_all_then_read)
        thread.start()
        link.send("state", text=LARGE)
        message = link.receive()
        thread.join()
    assert message is not None
    assert message.name == "large"
    assert message.body["text"] == LARGE
    link.close()
