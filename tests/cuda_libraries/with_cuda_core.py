"""Parts with NVIDIA's cuda.core, which calls the driver through cuda.bindings and needs no CUDA runtime."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cuda.core import (
    Buffer,
    Device,
    DeviceMemoryResource,
    EventOptions,
    GraphMemoryResource,
    LaunchConfig,
    LegacyPinnedMemoryResource,
    ManagedMemoryResource,
    ObjectCode,
    PinnedMemoryResource,
    VirtualMemoryResource,
    launch,
)
from cuda.core.graph import GraphDefinition
from parts import MIB, arrays, check, go, numbers, run, submissions, tell

device = Device()
device.set_current()
stream = device.create_stream()


def of_host(array: Any) -> Any:
    return Buffer.from_handle(array.ctypes.data, array.nbytes)


def sent(array: Any, resource: Any = device, to: Any = stream) -> Any:
    """The array in new memory on the GPU."""
    buffer = resource.allocate(array.nbytes, stream=to)
    buffer.copy_from(of_host(array), stream=to)
    return buffer


def read(buffer: Any, of: Any = stream) -> Any:
    array = np.empty(buffer.size // 8, np.int64)
    buffer.copy_to(of_host(array), stream=of)
    of.sync()
    return array


def hold(mebibytes: int, seed: int) -> tuple[Any, Any]:
    """The same data on the host and on the GPU."""
    left = arrays(mebibytes, seed)
    there = [sent(one) for one in left]
    stream.sync()
    return left, there


def memory(mebibytes: int, rounds: int, seed: int) -> None:
    """All sizes, read, copied on the GPU and freed in the order of a stream, from the device's pool."""
    left, there = hold(mebibytes, seed)
    for turn in range(rounds):
        go()
        check(left, [read(one) for one in there])
        for one, other in zip(left[turn % 4 :: 4], there[turn % 4 :: 4], strict=True):
            made = device.allocate(one.nbytes, stream=stream)
            made.copy_from(other, stream=stream)
            check([one], [read(made)])
            made.close(stream)


def streams(mebibytes: int, rounds: int, seed: int) -> None:
    """Four streams that wait for each other's events, and sets."""
    left, there = hold(mebibytes, seed)
    used = [device.create_stream() for _ in range(4)]
    for turn in range(rounds * 4):
        own, back = [], []
        for place, one in enumerate(used):
            own.append(numbers(1000 + 37_000 * ((turn + place) % 7), seed + 100 * place + turn))
            buffer = sent(own[-1], to=one)
            event = one.record(options=EventOptions(timing_enabled=True))
            used[place - 1].wait(event)
            made = device.allocate(own[-1].nbytes, stream=one)
            made.copy_from(buffer, stream=one)
            back.append(read(made, one))
            buffer.fill(place, stream=one)
            tell(set(read(buffer, one).view(np.uint8)) == {place}, f"stream {place} was not filled")
            tell(event.is_done, "an event is not reached although later work is done")
            buffer.close(one)
            made.close(one)
        check(own, back)
    check(left, [read(one) for one in there])


def pools(mebibytes: int, rounds: int, seed: int) -> None:
    """Memory of each kind: a pool of its own, managed, pinned, and mapped by the program itself."""
    left, there = hold(mebibytes // 2, seed)
    own = DeviceMemoryResource(device)
    on_host = (PinnedMemoryResource(), LegacyPinnedMemoryResource(), ManagedMemoryResource())
    for turn in range(rounds):
        go()
        array = numbers(mebibytes * MIB // 80, seed + 1000 * turn)
        before = own.attributes.used_mem_current
        buffer = sent(array, own)
        tell(own.attributes.used_mem_current == before + array.nbytes, "wrong size of the pool in use")
        check([array], [read(buffer)])
        buffer.close(stream)
        tell(own.attributes.used_mem_current == before, "the pool did not shrink")
        for resource in on_host:
            buffer = resource.allocate(array.nbytes, stream=stream)
            stream.sync()
            tell(buffer.is_host_accessible, f"the host cannot read memory of {resource}")
            ctypes.memmove(int(buffer.handle), array.ctypes.data, array.nbytes)
            made = device.allocate(array.nbytes, stream=stream)
            made.copy_from(buffer, stream=stream)
            check([array], [read(made)])
            made.close(stream)
            buffer.close(stream)
        array = numbers(1 << 20, seed + turn)
        buffer = sent(array, VirtualMemoryResource(device))
        check([array], [read(buffer)])
        buffer.close(stream)
    check(left, [read(one) for one in there])


def graphs(mebibytes: int, rounds: int, seed: int) -> None:
    """A captured copy, through memory that belongs to the graph, still works after the other memory has moved."""
    left, there = hold(mebibytes, seed)
    source, target = there[3], device.allocate(there[3].size, stream=stream)
    stream.sync()
    builder = device.create_graph_builder().begin_building()
    between = GraphMemoryResource(device).allocate(source.size, stream=builder)
    between.copy_from(source, stream=builder)
    target.copy_from(between, stream=builder)
    between.close(builder)
    graph = builder.end_building().complete()
    for turn in range(rounds):
        go()
        target.copy_from(of_host(numbers(target.size // 8, seed + turn)), stream=stream)
        graph.launch(stream)
        check([left[3]], [read(target)])
    check(left, [read(one) for one in there])


def nodes(mebibytes: int, rounds: int, seed: int) -> None:
    """Nodes that the program adds itself, one of which allocates memory, use memory that may have moved."""
    left, there = hold(mebibytes, seed)
    source = there[1]
    for turn in range(rounds):
        go()
        target = sent(numbers(source.size // 8, seed + turn))
        definition = GraphDefinition()
        between = definition.allocate(source.size)
        node = between.memset(between.dptr, 0, source.size)
        node = node.memcpy(between.dptr, int(source.handle), source.size)
        node.memcpy(int(target.handle), between.dptr, source.size).deallocate(between.dptr)
        definition.instantiate().launch(stream)
        check([left[1]], [read(target)])
    check(left, [read(one) for one in there])


def calls(mebibytes: int, rounds: int, seed: int) -> None:
    kernel = ObjectCode.from_cubin(b"\x7fELF").get_kernel("nothing")
    for _ in range(200 * rounds):
        launch(stream, LaunchConfig(grid=1, block=1), kernel)
    stream.sync()
    passed = submissions()
    tell(passed >= 200 * rounds, f"only {passed} submissions passed the gate")


if __name__ == "__main__":
    run(memory, streams, pools, graphs, nodes, calls)
