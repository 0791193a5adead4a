"""The segments of one table: the number of each owner's memory, and its users.

A segment does not keep its owner alive; the arrays in the table that use it do. When the last of them is dropped, so is
the segment. So its address is valid as long as the segment is known.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from baton_shim.base.storages import held_in_place, is_storage, without_tensor
from baton_shim.state import memory
from baton_shim.state.refusal import TableBroken

COPIED_OUT_BYTES = 64 << 10  # a smaller fresh segment gets its own memory instead of pages of the message's file


class Segment:
    """Contiguous memory of one owner, at this address of this kernel."""

    __slots__ = (
        *("address", "bytes", "device", "device_address", "mapped", "memory", "number"),
        *("seen", "source", "storage", "users"),
    )

    def __init__(self, number: int, address: int, size: int) -> None:
        self.number, self.address, self.bytes = number, address, size
        self.memory: Any = None  # received memory that no object owns
        self.source: bytes | None = None  # received, small, and without its own memory yet
        self.storage: Any = None  # torch's handle of `memory`, created once so that tensors share it
        self.device: Any = None  # the storage on a GPU of which this memory is a copy
        self.device_address = 0  # of that storage, when it became known
        self.mapped = False  # pages of a received file, for which the system knows which were written to
        self.seen: Any = None  # the scanner's state
        self.users: set[int] = set()  # numbers of the objects that are views of it

    @property
    def end(self) -> int:
        return self.address + self.bytes

    def contains(self, address: int, size: int) -> bool:
        return self.address <= address and address + size <= self.end

    def has_left_device(self) -> bool:
        """Whether its storage on a GPU has been resized, so that another one may have its former place."""
        device = self.device
        return device is not None and (device.data_ptr(), device.nbytes()) != (self.device_address, self.bytes)

    def has_left_storage(self) -> bool:
        """Whether its storage has been resized, so that its address may belong to something else now.

        Tensors that no message visits may share the storage and resize it: the parts of a sparse tensor.
        """
        storage = self.storage
        return storage is not None and (storage.data_ptr() != self.address or storage.nbytes() < self.bytes)

    def keeps_memory(self) -> bool:
        """Whether it holds its memory itself, so that the memory outlives the objects that use it."""
        return self.memory is not None or self.source is not None or self.storage is not None


class Segments:
    """All segments of one table, by number and by address."""

    def __init__(self, user_of: Callable[[Segment], Any]) -> None:
        """`user_of` returns an object that keeps a segment's memory alive, or None if the memory has been freed.

        (A weak reference would break `resize`.)
        """
        self._user_of = user_of
        self.by_number: dict[int, Segment] = {}
        self.next_number = 0
        self._starts: list[int] = []
        self._by_start: dict[int, list[Segment]] = {}  # the longest of them comes last
        self._by_device: dict[int, Segment] = {}
        self._outer: list[Segment] = []  # those within which another one begins

    def find(self, address: int, size: int) -> Segment | None:
        """The segment that contains this whole range."""
        while (segment := self._find_known(address, size)) is not None and not self.is_there(segment):
            self.hide(segment)
        return segment

    def is_there(self, segment: Segment) -> bool:
        """Whether its memory still belongs to it. A tensor or an array that is resized frees its memory."""
        if segment.keeps_memory():
            return not (segment.has_left_storage() or segment.has_left_device())
        return not segment.users or self._user_of(segment) is not None

    def _find_known(self, address: int, size: int) -> Segment | None:
        place = bisect.bisect_right(self._starts, address)
        nearest = self._by_start[self._starts[place - 1]][-1:] if place else []
        return next((one for one in (*nearest, *self._outer) if one.contains(address, size)), None)

    def overlapping(self, low: int, high: int) -> list[Segment]:
        """The segments that have some memory of this range."""
        first, last = bisect.bisect_right(self._starts, low) - 1, bisect.bisect_left(self._starts, high)
        near = [one for start in self._starts[max(first, 0) : last] for one in self._by_start[start]]
        found = [one for one in dict.fromkeys((*near, *self._outer)) if one.address < high and low < one.end]
        for segment in found:
            if not self.is_there(segment):
                self.hide(segment)
        return [one for one in found if self.is_there(one)]

    def find_device(self, storage: Any) -> Segment | None:
        """The segment of a storage on a GPU."""
        segment = self._by_device.get(storage.data_ptr())
        if segment is not None and not self.is_there(segment):
            del self._by_device[storage.data_ptr()]
            return None
        return segment

    def add_device(self, storage: Any) -> Segment:
        """A new segment for a storage on a GPU: its copy in this process's memory, which is what is sent."""
        copy = storage.cpu()
        segment = self.add(copy.data_ptr(), storage.nbytes())
        segment.storage = copy
        self.mirror(segment, storage)
        return segment

    def mirror(self, segment: Segment, storage: Any) -> None:
        """From now on, the segment's memory is a copy of this storage on a GPU."""
        segment.device, segment.device_address = storage, storage.data_ptr()
        self._by_device[segment.device_address] = segment

    def copy_from_gpu(self, segment: Segment) -> None:
        """Updates the copy from the GPU, before it is read."""
        if segment.device is not None:
            segment.storage.copy_(segment.device)

    def copy_to_gpu(self, numbers: Iterable[int]) -> None:
        """Updates storages on GPUs, after their copies were written."""
        for number in numbers:
            segment = self.by_number.get(number)
            if segment is not None and segment.device is not None:
                segment.device.copy_(segment.storage)

    def add(self, address: int, size: int) -> Segment:
        """A new segment of this kernel's own memory."""
        segment = Segment(self.next_number, address, size)
        self.next_number += 1
        self.by_number[segment.number] = segment
        self._place(segment)
        return segment

    def receive(self, number: int, size: int, file_descriptor: int, content: memoryview, offset: int) -> Segment:
        """A segment that the other end numbered. `content` is the whole file."""
        segment = Segment(number, 0, size)
        if size >= COPIED_OUT_BYTES:
            self.settle(segment, memory.map_private(file_descriptor, offset, size))
            segment.mapped = True
        else:
            segment.source = bytes(content[offset : offset + size])
        self.by_number[number] = segment
        self.next_number = max(self.next_number, number + 1)
        return segment

    def expect(self, number: int, size: int) -> None:
        """A segment that the other end numbered and whose bytes arrive later; until then it is all zeros."""
        segment = Segment(number, 0, size)
        if size >= COPIED_OUT_BYTES:
            self.settle(segment, memory.zeros(size))
        else:
            segment.source = bytes(size)
        self.by_number[number] = segment
        self.next_number = max(self.next_number, number + 1)

    def buffer(self, segment: Segment) -> Any:
        """The segment's memory as a buffer for a new view; it keeps the memory's owner alive."""
        if segment.memory is not None:
            return segment.memory
        if segment.source is not None:
            self.settle(segment, memory.copied(segment.source))
            return segment.memory
        owner = self.owner(segment)
        return memory.at_address(segment.address, segment.bytes, held_in_place(owner) if is_storage(owner) else owner)

    def owner(self, segment: Segment) -> Any:
        """The object that keeps the segment's memory alive, until that object is resized."""
        if not self.is_there(segment):
            raise TableBroken(f"The memory of segment {segment.number} was freed while the other kernel used it")
        if segment.source is not None:
            return self.buffer(segment)
        if segment.memory is not None:
            return segment.memory
        return segment.storage if segment.storage is not None else without_tensor(self._user_of(segment))

    def settle_deferred(self) -> None:
        """Gives memory to small received segments that have not been used yet."""
        for segment in self.by_number.values():
            if segment.source is not None:
                self.settle(segment, memory.copied(segment.source))

    def settle(self, segment: Segment, place: Any) -> None:
        """Gives a received segment its own memory."""
        segment.memory, segment.source = place, None
        segment.address = memory.address_of(place)
        self._place(segment)

    def settle_at(self, segment: Segment, address: int) -> None:
        """Gives a received segment the memory of a new object, which owns it."""
        segment.source, segment.address = None, address
        self._place(segment)

    def _place(self, segment: Segment) -> None:
        segments = self._by_start.setdefault(segment.address, [])
        if not segments:
            bisect.insort(self._starts, segment.address)
        if segment not in segments:
            bisect.insort(segments, segment, key=lambda one: one.bytes)
            self._note_outer(segment)

    def _note_outer(self, segment: Segment) -> None:
        """Any other one that contains the start of this segment contains that of the one before it, too."""
        place = bisect.bisect_left(self._starts, segment.address)
        before = self._by_start[self._starts[place - 1]] if place else ()
        self._outer += [one for one in before if one.end > segment.address and one not in self._outer]
        if place + 1 < len(self._starts) and self._starts[place + 1] < segment.end:
            self._outer.append(segment)

    def put_back(self, known: Mapping[int, Segment], next_number: int) -> None:
        """Returns to these segments."""
        self.clear()
        self.next_number = next_number
        for number, segment in known.items():
            self.by_number[number] = segment
            self._place(segment)
            if segment.device is not None:
                self.mirror(segment, segment.device)

    def clear(self) -> None:
        for table in (self.by_number, self._starts, self._by_start, self._by_device, self._outer):
            table.clear()

    def hide(self, segment: Segment) -> None:
        """Stops finding it, because its memory no longer belongs to the segment."""
        segments = self._by_start.get(segment.address, [])
        if segment in segments:
            segments.remove(segment)
            self._outer = [one for one in self._outer if one is not segment]
            if not segments:
                del self._by_start[segment.address]
                del self._starts[bisect.bisect_left(self._starts, segment.address)]

    def show(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            self._place(segment)

    def drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            segment = self.by_number.pop(number, None)
            if segment is not None and self._by_device.get(segment.device_address) is segment:
                del self._by_device[segment.device_address]
            if segment is not None:
                self.hide(segment)
