"""The mutable objects and the memory that some values reach. If two uses of the notebook have nothing of this in
common, they cannot affect each other.

Functions, and classes without data, count as code: only what they refer to is included, not they themselves.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from baton_shim.base.storages import range_of, storage_of
from baton_shim.state.kinds.arrays import bounds, owner_of
from baton_shim.state.kinds.graphs import node_of
from baton_shim.state.kinds.tensors import bare
from baton_shim.state.kinds.variables import Import, Variable

if TYPE_CHECKING:
    from baton_shim.state.kinds import Kinds
    from baton_shim.state.walk import Walker

# If these are opaque, that does not matter: using code does not change it.
_BY_NAME = (types.FunctionType, type, types.ModuleType)
# Attributes of functions: the wrapped function, and the method of an `@gpu` function that runs it in the background.
_OF_WRAPPERS = {"__wrapped__", "background"}
_CODE = (
    type,
    types.FunctionType,
    staticmethod,
    classmethod,
    property,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)


@dataclass
class Footprint:
    objects: dict[int, Any] = field(default_factory=dict)
    """By id; kept alive so that the ids remain valid."""
    memory: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of a first address and the address after the last."""
    opaque: Any = None
    """An object that does not show what it reaches."""

    def common(self, other: Footprint) -> Any:
        """An object that both reach, or None."""
        few, many = sorted((self.objects, other.objects), key=len)
        for number, found in few.items():
            if number in many:
                return found
        return "memory" if overlap(merged(self.memory), merged(other.memory)) else None

    def update(self, other: Footprint) -> None:
        self.objects |= other.objects
        self.memory += other.memory


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same addresses as sorted ranges that neither touch nor overlap."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def overlap(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> bool:
    """Whether two lists of `merged` ranges share an address."""
    ones, others = iter(one), iter(other)
    first, second = next(ones, None), next(others, None)
    while first is not None and second is not None:
        if first[0] < second[1] and second[0] < first[1]:
            return True
        if first[1] <= second[1]:
            first = next(ones, None)
        else:
            second = next(others, None)
    return False


def footprint(values: Iterable[Any], walker: Walker, held_by: Callable[[Any], Iterable[Any] | None]) -> Footprint:
    """`held_by` returns the contents of an object that cannot be sent; None if it does not know the object."""
    made, kinds, numbering = Footprint(), walker.kinds, walker.numbering
    waiting, seen = list(values), set[int]()
    while waiting:
        reach, waiting = walker.reach(waiting), []
        for number in reach.marked:
            if number >= numbering.anchors and number not in numbering.dropped:
                _add(numbering.objects[number], made, kinds)
        for obj in reach.unknown.values():
            held = held_by(obj)
            if held is None:
                _add(obj, made, kinds)
                if not isinstance(obj, _BY_NAME) and (id(obj) in reach.unreadable or kinds.why_not(obj) is not None):
                    made.opaque = obj
            elif id(obj) not in seen:
                seen.add(id(obj))
                waiting += held
    return made


def _add(obj: Any, made: Footprint, kinds: Kinds) -> None:
    kind = kinds.of(obj)
    if isinstance(obj, type):
        changes = obj.__module__ == "__main__" and has_data(obj)
    elif isinstance(obj, types.FunctionType):
        changes = not vars(obj).keys() <= _OF_WRAPPERS
    elif isinstance(obj, types.CellType):
        changes = not any(isinstance(content, _CODE) for content in kinds.cell.read(obj))
    elif isinstance(obj, Variable):
        changes = obj.is_assigned()
    else:
        changes = kind.changes and not isinstance(obj, (types.ModuleType, Import))
    if changes:
        made.objects[id(obj)] = obj
    if kind is kinds.array and obj.size:
        made.memory.append(bounds(owner_of(obj)))
    elif kind is kinds.tensor:
        made.memory += _memory_of(obj)
        if _graph(obj) is not None:  # only the library knows the leaves of the graph
            made.opaque = obj


@bare
def _memory_of(tensor: Any) -> list[tuple[int, int]]:
    try:
        begin, end = range_of(storage_of(tensor))
    except (RuntimeError, NotImplementedError):  # a layout without storage
        return []
    return [(begin, end)] if begin < end else []


@bare
def _graph(tensor: Any) -> Any:
    return node_of(tensor)


def has_data(kind: type) -> bool:
    """Whether the class has attributes other than methods and those of Python."""
    attributes = tuple(vars(kind).items())
    return any(not (_of_python(name) or isinstance(value, _CODE)) for name, value in attributes)


def _of_python(name: str) -> bool:
    return name == "_abc_impl" or (name.startswith("__") and name.endswith("__"))
