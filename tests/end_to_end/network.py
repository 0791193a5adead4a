"""A relay between clients and one server that simulates the failures of networks.

It cuts or resets connections, swallows what is sent, or delivers it late, whenever a test wants that.
Relays of a test share one thread.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

Value = TypeVar("Value")

Direction = Literal["there", "back"]
"""From the clients, or to them."""

RESET_ON_CLOSE = struct.pack("ii", 1, 0)
CHUNK_BYTES = 64 << 10


class Network:
    """Runs the relays of one test."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()
        self._relays: list[Relay] = []

    def relay(self, target: str, listen: str | socket.socket) -> Relay:
        """Addresses are written as in Baton: `unix:/PATH` or `http://HOST:PORT`, where port 0 means any.

        A bound socket may be in another network namespace.
        """
        relay = Relay(self, target, listen)
        self.run(relay._listen())
        self._relays.append(relay)
        return relay

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)

    def close(self) -> None:
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for relay in self._relays:
            await relay._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class Relay:
    """Clients connect to `address` and reach the target."""

    def __init__(self, network: Network, target: str, listen: str | socket.socket) -> None:
        self._bound = listen if isinstance(listen, socket.socket) else None
        self.address = listen if isinstance(listen, str) else "http://{}:{}".format(*listen.getsockname())
        self._network = network
        self._target = target
        self._server: asyncio.Server | None = None
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._flowing: dict[Direction, asyncio.Event] = {"there": asyncio.Event(), "back": asyncio.Event()}
        self._swallowed: dict[Direction, int] = {"there": 0, "back": 0}
        for flowing in self._flowing.values():
            flowing.set()
        self._delay = 0.0

    # ---- faults

    def cut(self) -> None:
        """Ends every connection and refuses new ones."""
        self._network.run(self._cut())

    def mend(self) -> None:
        """Accepts connections again, and delivers at once what was swallowed."""
        self._network.run(self._mend())

    def break_off(self) -> None:
        """Ends every connection, loses what was swallowed, and accepts new connections at once: none is refused."""
        self._network.run(self._break_off())

    def reset(self) -> None:
        """Ends every connection with a TCP reset; new ones are accepted."""
        self._network.run(self._abort())

    def swallow(self, *directions: Direction) -> None:
        """Connections stay open, but nothing passes in these directions: neither bytes nor the end of a connection."""
        self._network.run(self._swallow(directions or ("there", "back")))

    def has_swallowed(self, direction: Direction) -> bool:
        """Whether something is waiting to pass."""
        return self._swallowed[direction] > 0

    def delay(self, seconds: float) -> None:
        """Delivers each piece this much later."""
        self._delay = seconds

    # ---- in the network's thread

    async def _listen(self) -> None:
        if self._bound is not None:
            self._server = await asyncio.start_server(self._accept, sock=self._bound.dup())
        elif self.address.startswith("unix:"):
            self._server = await asyncio.start_unix_server(self._accept, path_of(self.address))
        else:
            parts = urlsplit(self.address)
            self._server = await asyncio.start_server(self._accept, parts.hostname, parts.port)
            self.address = f"http://{parts.hostname}:{self._server.sockets[0].getsockname()[1]}"

    async def _cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._abort()

    async def _break_off(self) -> None:
        await self._abort()
        await self._mend()

    async def _mend(self) -> None:
        self._delay = 0.0
        for flowing in self._flowing.values():
            flowing.set()
        if self._server is None:
            await self._listen()

    async def _swallow(self, directions: tuple[Direction, ...]) -> None:
        for direction in directions:
            self._flowing[direction].clear()

    async def _wait(self, direction: Direction) -> None:
        self._swallowed[direction] += 1
        try:
            await self._flowing[direction].wait()
        finally:
            self._swallowed[direction] -= 1

    async def _abort(self) -> None:
        for pair in list(self._pairs):
            for writer in pair:
                abort(writer)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):  # the test has ended
            await self._wait("there")
            try:
                there_reader, there_writer = await connect(self._target)
            except OSError:  # as without a relay: nothing answers
                abort(writer)
                return
            pair = writer, there_writer
            self._pairs.add(pair)
            try:
                await asyncio.gather(
                    self._pass(reader, there_writer, "there"), self._pass(there_reader, writer, "back")
                )
            finally:
                self._pairs.discard(pair)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        try:
            while data := await reader.read(CHUNK_BYTES):
                if self._delay:
                    await asyncio.sleep(self._delay)
                await self._wait(direction)
                writer.write(data)
                await writer.drain()
        except OSError:  # the end of one is the end of both
            await self._wait(direction)
        writer.close()


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.startswith("unix:"):
        return await asyncio.open_unix_connection(path_of(address))
    parts = urlsplit(address)
    return await asyncio.open_connection(parts.hostname, parts.port)


def abort(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.family != socket.AF_UNIX and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()


def path_of(address: str) -> Path:
    return Path(address.removeprefix("unix:"))
