"""The private socket, when the other end is in the middle of a frame itself."""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path

import msgpack
from baton_shim.base.link import Link

LARGE = b"x" * 4_000_000


def connect(folder: Path) -> tuple[Link, socket.socket]:
    path = os.fspath(folder / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        link = Link.to(path)
        other, _ = listener.accept()
    return link, other


def test_both_ends_send_more_than_the_socket_holds(tmp_path: Path) -> None:
    link, other = connect(tmp_path)
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


def test_threads_that_send_at_once_tear_no_frame(tmp_path: Path) -> None:
    link, other = connect(tmp_path)

    def send(number: int) -> None:
        for _ in range(5):
            link.send("published", listen=False, number=number, text=LARGE[: 300_000 * number])

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    numbers = []
    with other, other.makefile("rb") as stream:
        for _ in range(20):
            (length,) = struct.unpack(">Q", stream.read(8))
            body = msgpack.unpackb(stream.read(length))["published"]
            assert len(body["text"]) == 300_000 * body["number"]
            numbers.append(body["number"])
        for thread in threads:
            thread.join()
    assert sorted(numbers) == sorted([*range(4)] * 5)
    link.close()
