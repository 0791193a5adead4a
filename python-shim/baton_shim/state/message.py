"""The layout of a table's message: a small header of plain values, one pickle, and its large buffers.

Everything that both ends must do alike to their numbering is in the header, so that it can be checked before anything
of the notebook is touched.
"""

from __future__ import annotations

import itertools
import pickle
import platform
import struct
import sys
import zlib
from array import array
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import cloudpickle

from baton_shim.state import memory
from baton_shim.state.kinds.base import ATOMS
from baton_shim.state.places import Place
from baton_shim.state.refusal import TableBroken
from baton_shim.state.scanner import Seen

_LENGTH = struct.Struct("<I")
_LEAST_LEFT_BYTES = 64 << 10  # a smaller part of the stream is sent over the socket
_MOST_HERE = 1 << 30  # for one piece in a frame, whose lengths have 32 bits


@dataclass(frozen=True)
class SegmentView:
    """Memory of this kernel that belongs to a message. It is kept in place until `Table.release()`."""

    number: int
    address: int
    bytes: int
    fresh: bool
    seen: Seen | None = None

    def as_wire(self) -> dict[str, Any]:
        digests = memory.address_of(self.seen.digests) if self.seen is not None else None
        return {
            "number": self.number,
            "address": self.address,
            "bytes": self.bytes,
            "fresh": self.fresh,
            "digests": digests,
        }


@dataclass(frozen=True)
class Stream:
    """A message's bytes except its segments. Its parts are kept in place, as segments are."""

    parts: list[Any]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)

    def as_wire(self) -> list[dict[str, Any]]:
        return [
            {"at": {"address": memory.address_of(part), "bytes": len(part)}}
            if len(part) >= _LEAST_LEFT_BYTES
            else {"here": bytes(part)}
            for part in self.parts
        ]

    def in_frame(self) -> list[dict[str, Any]]:
        """The wire form for a process that may not read this one's memory."""
        pieces = (
            memoryview(part)[at : at + _MOST_HERE] for part in self.parts for at in range(0, len(part), _MOST_HERE)
        )
        return [{"here": bytes(piece)} for piece in pieces]


@dataclass(frozen=True)
class Snapshot:
    """One message of an object table, with the addresses of its memory."""

    messages: int
    """How many messages the table has sent and received before this one."""
    stream: Stream
    segments: list[SegmentView]
    dropped_segments: list[int]
    left: dict[str, str] = field(default_factory=dict)
    """Names whose objects cannot leave this kernel, each with the reason."""
    deferred_bytes: int = 0
    """The bytes that are left out and sent later (`Table.snapshot_deferred`)."""

    def as_wire(self) -> dict[str, Any]:
        """The wire form, `protocol::shim::Snapshot`."""
        return {
            "messages": self.messages,
            "stream": self.stream.as_wire(),
            "segments": [segment.as_wire() for segment in self.segments],
            "dropped_segments": self.dropped_segments,
        }


@dataclass(frozen=True)
class Header:
    """What the receiving table must know before it reads the pickle."""

    count_before: int  # how many numbers both ends know before this message
    count_after: int
    dropped: list[int]  # numbers of objects that the sender no longer refers to
    replaced: list[int]  # numbers of objects that are sent again, because they cannot be updated
    reserved: list[Place]  # of large plain containers and objects of modules, with the next numbers; patches fill them
    compact: bool  # both ends first renumber their objects, without gaps
    deleted: list[str]  # names to delete
    plain: bool = False  # the body is an ordinary pickle of `extra`: it contains no numbered object
    versions: tuple[str, str] | None = None
    modules: bytes | None = None  # what must be loaded before the body is read
    buffers: tuple[int, ...] = ()  # sizes of the buffers after the body
    deferred: tuple[tuple[int, int], ...] = ()  # segments whose bytes follow: number and size
    kept: tuple[
        tuple[int, tuple[str, ...], tuple[int, ...]], ...
    ] = ()  # for each object that is kept here: its number, names that it may use, numbers that it holds


def versions() -> tuple[str, str]:
    """The versions that must be equal at both ends for code to be sent."""
    return ".".join(platform.python_version_tuple()[:2]), cloudpickle.__version__


def find_class(module: str, name: str) -> Any:
    """As `pickle` does."""
    if module == "__main__":  # this name may mean another module here
        raise TableBroken(f"The message looks for '{name}' by its name in the notebook")
    __import__(module)
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part)
    return found


def check_versions(header: Header) -> None:
    """Raises TableBroken if code cannot be sent between the two ends."""
    if header.versions is not None and tuple(header.versions) != versions():
        (here_python, here_pickle), (python, pickled) = versions(), header.versions
        raise TableBroken(
            f"The other kernel runs Python {python} with cloudpickle {pickled}, this one Python {here_python} "
            f"with cloudpickle {here_pickle}; functions cannot move between them"
        )


def _steps(numbers: list[int]) -> list[int]:
    """Ascending numbers as differences, which compress to almost nothing."""
    return [number - before for before, number in zip([0, *numbers], numbers, strict=False)]


def join(header: Header, body: bytes | memoryview, buffers: list[Any]) -> Stream:
    dropped = zlib.compress(array("Q", _steps(header.dropped)).tobytes(), 1) if header.dropped else b""
    head = pickle.dumps((dropped, *tuple(vars(replace(header, dropped=[])).values())), protocol=5)
    return Stream([_LENGTH.pack(len(head)) + head, body, *buffers])


def split(stream: memoryview) -> tuple[Header, memoryview, list[memoryview]]:
    """The header, the pickle, and its buffers."""
    try:
        (length,) = _LENGTH.unpack_from(stream)
        dropped, *fields = pickle.loads(stream[_LENGTH.size : _LENGTH.size + length])
        header = Header(*fields)
        if dropped:
            header = replace(header, dropped=list(accumulate(array("Q", zlib.decompress(dropped)))))
    except Exception as error:
        raise TableBroken("The state message has no readable header") from error
    rest = stream[_LENGTH.size + length :]
    begins = [*accumulate(header.buffers, initial=len(rest) - sum(header.buffers))]
    buffers = [rest[begin:end] for begin, end in itertools.pairwise(begins)]
    return header, rest[: begins[0]], buffers


_PLAIN_CONTAINERS = (list, tuple, dict)


def is_plain(value: Any, known: dict[int, Any], budget: int = 200) -> bool:
    """Whether it is plain values in plain containers that the table does not know, so that no identity must be kept."""
    waiting = [value]
    while waiting and budget:
        budget -= 1
        part = waiting.pop()
        if type(part) in ATOMS:
            continue
        if type(part) not in _PLAIN_CONTAINERS or id(part) in known:
            return False
        waiting.extend((*part.keys(), *part.values()) if type(part) is dict else part)
    return not waiting
