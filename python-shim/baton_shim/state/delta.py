"""The memory of a received message, and how to undo a message.

Blocks of known segments are written before the pickle is read, because some `__setstate__` copy from arrays. In the
notebook, their old bytes are kept until everything is read. The inverse of each patch is recorded just before the patch
is applied.
"""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple

from baton_shim.base.undoing import Action, OnUndo, take_back
from baton_shim.state import memory
from baton_shim.state.kinds import Kind
from baton_shim.state.refusal import TableBroken
from baton_shim.state.segments import Segment, Segments

_NOTHING = object()


class Received(NamedTuple):
    """A message and its reader's options, which are the arguments of `Table.apply`."""

    delta: Mapping[str, Any]
    file_descriptor: int
    keeps_bound: bool
    apply_extra: Callable[[Any, OnUndo], object]


class Undo:
    """How to undo one received message: the inverse of each change, in the order of the changes."""

    def __init__(self, segments: Segments, *, of_memory: bool) -> None:
        """`of_memory`: also restore the old bytes of known segments."""
        self.patched: list[int] = []
        self.bound: dict[str, Any] = {}
        """All names in the message, including those that were bound ahead of it."""
        self.segments: set[int] = set()
        """The segments whose bytes the message changed."""
        self._segments = segments
        self.of_memory = of_memory
        self._memory: list[KeptMemory] = []
        self._names: list[tuple[dict[str, Any], str, Any]] = []
        self._patches: list[tuple[Kind, Callable[[], Any], Any]] = []
        self._actions: list[Action] = []
        self._modules: list[Action] = []
        self._after: list[bytes] = []
        self.room = 0
        """How many old bytes of memory that arrives after the message may still be kept."""
        self.incomplete = False
        """More has arrived than could be kept."""
        self._received: list[int] = []
        self._next_segment = segments.next_number

    def received(self, number: int) -> None:
        self._received.append(number)

    def keep_memory(self, parts: Iterable[memory.Part], owner: Any) -> None:
        if self.of_memory:
            place = place_of(owner)
            self._memory += (
                KeptMemory(part.address, memory.read(part.address, part.bytes), owner, place) for part in parts
            )

    def keep_if_room(self, parts: list[memory.Part], owner: Any) -> None:
        self.room -= sum(part.bytes for part in parts)
        self.incomplete |= self.room < 0
        if not self.incomplete:
            self.keep_memory(parts, owner)

    def keep_name(self, namespace: dict[str, Any], name: str) -> None:
        self._names.append((namespace, name, namespace.get(name, _NOTHING)))

    def names(self, namespace: Mapping[str, Any]) -> set[str]:
        """The names that the message bound or deleted."""
        return {name for where, name, _ in self._names if where is namespace}

    def identities(self) -> set[int]:
        """The identities of the objects that the message changed."""
        return {id(get()) for _, get, _ in self._patches}

    def kept_bytes(self) -> int:
        return sum(len(kept.before) for kept in self._memory)

    def keep(self, number: int, kind: Kind, obj: Any) -> None:
        self.patched.append(number)
        self._patches.append((kind, lambda: obj, kind.content(obj, kind.read(obj))))

    def add(self, action: Action) -> None:
        """Adds the undo of a change that is not to a variable."""
        self._actions.append(action)

    def add_module(self, action: Action) -> None:
        """Adds the undo of a change to a module. It is used only if the message fails."""
        self._modules.append(action)

    def held(self) -> Iterator[object]:
        """Objects that are kept alive only for the undo."""
        yield from (before for _, _, before in self._names if before is not _NOTHING)
        yield from (content for _, _, content in self._patches)

    def loosen(self) -> None:
        """Called when the message has succeeded: from now on, this does not keep the changed objects alive."""
        self._patches = [(kind, loosely(get), content) for kind, get, content in self._patches]

    def seal(self) -> None:
        """Records the memory as it is now, for `overwritten`."""
        self._after = [memory.read(kept.address, len(kept.before)) for kept in self._memory]

    def overwritten(self) -> bool:
        """Whether memory that the message changed has changed again since."""
        pairs = zip(self._memory, self._after, strict=True)
        return any(not kept.is_there() or memory.read(kept.address, len(after)) != after for kept, after in pairs)

    def forget(self) -> None:
        """Drops everything, because the message has succeeded."""
        self._actions.clear()
        self._modules.clear()
        self._patches.clear()
        self._memory.clear()
        self._names.clear()
        self.bound.clear()

    def run(self) -> None:
        """Undoes a message that has failed."""
        self.take_back()
        take_back(self._modules)
        self._segments.drop(self._received)
        self._segments.next_number = self._next_segment

    def take_back(self) -> None:
        """Restores variables and surroundings as they were before the message. The table is not used after this."""
        take_back(self._actions)
        for namespace, name, before in reversed(self._names):
            if before is _NOTHING:
                namespace.pop(name, None)
            else:
                namespace[name] = before
        for kind, get, content in reversed(self._patches):
            if (obj := get()) is not None:
                kind.apply(obj, content)
        for kept in reversed(self._memory):
            if kept.is_there():
                memory.write(kept.address, kept.before)


class KeptMemory(NamedTuple):
    """Memory as it was before a message."""

    address: int
    before: bytes
    owner: Any
    place: tuple[int, int] | None

    def is_there(self) -> bool:
        """Whether the owner still has this memory: it gives it back when it is resized."""
        return place_of(self.owner) == self.place


def place_of(owner: Any) -> tuple[int, int] | None:
    """The address and size of the memory of an array or a tensor's storage, which may be resized. None for others."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    kind = type(owner)
    if numpy is not None and issubclass(kind, numpy.ndarray):
        return numpy.ndarray.__array_interface__.__get__(owner)["data"][0], numpy.ndarray.nbytes.__get__(owner)
    if torch is not None and issubclass(kind, torch.UntypedStorage):
        return owner.data_ptr(), owner.nbytes()
    return None


def loosely(get: Callable[[], Any]) -> Callable[[], Any]:
    """A weak version of `get`, which returns None once the object is gone; `get` itself if weak references fail."""
    try:
        return weakref.ref(get())
    except TypeError:
        return get


def read_segments(delta: Mapping[str, Any], file_descriptor: int, segments: Segments, undo: Undo) -> memoryview:
    """Updates the memory and returns the pickle stream, which consists of the file's own pages."""
    size = os.fstat(file_descriptor).st_size
    if not size:
        return memoryview(b"")
    content = memoryview(mmap.mmap(file_descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ))
    parts: list[memory.Part] = []
    for part in delta["segments"]:
        number, bytes_, patches = part["number"], part["bytes"], part["patches"]
        _check_extents(patches, size, bytes_, number)
        segment = segments.by_number.get(number)
        if part["fresh"] and segment is None:  # otherwise an earlier message left its bytes out
            undo.received(number)
            offset = patches[0]["source"]["offset"] if patches else 0
            segments.receive(number, bytes_, file_descriptor, content, offset)
            continue
        if segment is None or segment.bytes != bytes_:
            raise TableBroken(f"Segment {number} of {bytes_} bytes is not known here")
        if not segments.is_there(segment):  # this kernel has freed it since
            continue
        owner = segments.owner(segment) if patches else None
        changed = _parts(patches, segment)
        undo.keep_memory(changed, owner)
        if changed:
            undo.segments.add(number)
        parts += changed
    memory.fill(file_descriptor, parts)
    stream = delta["stream"]
    return content[stream["offset"] : stream["offset"] + stream["bytes"]]


def write_segments(
    delta: Mapping[str, Any], file_descriptor: int, segments: Segments, expected: Set[int], undo: Undo
) -> None:
    """Writes bytes that arrive after their message. Everything is checked before anything is written."""
    size = os.fstat(file_descriptor).st_size
    parts: list[memory.Part] = []
    mapped: list[tuple[Segment, int]] = []
    for part in delta["segments"]:
        number, bytes_, patches = part["number"], part["bytes"], part["patches"]
        _check_extents(patches, size, bytes_, number)
        segment = segments.by_number.get(number)
        if number not in expected or (segment is not None and segment.bytes != bytes_):
            raise TableBroken(f"Segment {number} of {bytes_} bytes is not expected here")
        if segment is None:  # no object here uses it any more
            continue
        if part["fresh"] and isinstance(segment.memory, mmap.mmap):
            mapped.append((segment, patches[0]["source"]["offset"]))
            continue
        owner = segments.owner(segment)
        changed = _parts(patches, segment)
        undo.keep_if_room(changed, owner)
        parts += changed
    for segment, start in mapped:
        memory.map_over(file_descriptor, start, segment.memory, segment.bytes)
        segment.mapped = True
    memory.fill(file_descriptor, parts)


def _parts(patches: list[Any], segment: Segment) -> list[memory.Part]:
    sources = ((patch["source"], segment.address + patch["offset"]) for patch in patches)
    return [memory.Part(source["offset"], source["bytes"], address) for source, address in sources]


def _check_extents(patches: list[Any], file_size: int, segment_size: int, number: int) -> None:
    for patch in patches:
        source = patch["source"]
        if source["offset"] + source["bytes"] > file_size or patch["offset"] + source["bytes"] > segment_size:
            raise TableBroken(f"A patch of segment {number} lies outside of it")
