"""pandas: frames, series and indexes with everything attached to them, and which objects share memory.

pandas writes in place if no other object uses the memory, and copies first otherwise. It decides by a list of owners
(`BlockValuesRefs`) that all of them share. Ordinary pickling gives each its own list, and then a write to one would
change the other. Here the list is sent as an object. An owner that stayed in the other kernel is represented by an
`Elsewhere`.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from baton_shim.state.kinds.base import Here, Kind, State, imported
from baton_shim.state.kinds.instances import AttributesKind
from baton_shim.state.kinds.reduced import ReducedForm, ReducedKind

_CACHE = "_cache"
_INTERNALS = "pandas._libs.internals"


def shares_owners() -> bool:
    """Whether pandas is new enough to have lists of owners. Asked last, only about types of pandas."""
    return hasattr(sys.modules.get(_INTERNALS), "BlockValuesRefs")


def is_owners_type(kind: type) -> bool:
    return issubclass(kind, imported(_INTERNALS, "BlockValuesRefs"))


def is_block_type(kind: type) -> bool:
    return issubclass(kind, imported(_INTERNALS, "Block")) and shares_owners()


def is_series_manager_type(kind: type) -> bool:
    return kind is imported("pandas.core.internals.managers", "SingleBlockManager") and shares_owners()


def is_arrow_column_type(kind: type) -> bool:
    return issubclass(kind, imported("pandas.core.arrays.arrow.array", "ArrowExtensionArray")) and shares_owners()


def is_frame_type(kind: type) -> bool:
    frames = imported("pandas", "DataFrame"), imported("pandas", "Series"), imported("pandas", "Index")
    return issubclass(kind, frames) and shares_owners()


class WholeKind(AttributesKind):
    """Objects that consist of attributes, some of which the class's own pickling would drop."""

    name = "whole"

    def is_blind(self, obj: Any) -> bool:
        return type(self) is WholeKind

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new, self.set_attributes)

    def reduce(self, obj: Any) -> Any:
        new, set_attributes = self._anchors
        return new, (type(obj),), self.lasting(obj), None, None, set_attributes

    def new(self, kind: type) -> Any:
        made: Any = object.__new__(kind)
        if is_optimizer_type(kind) and hasattr(made, "_patch_step_function"):
            made._patch_step_function()  # torch 2: otherwise `step` calls no hooks here
        return made

    def set_attributes(self, obj: Any, attributes: dict[str, Any]) -> None:
        obj.__dict__.clear()
        obj.__dict__.update(attributes)

    def lasting(self, obj: Any) -> dict[str, Any]:
        return dict(obj.__dict__)

    def read(self, obj: Any) -> State:
        attributes = self.lasting(obj)
        return type(obj), tuple(attributes), tuple(attributes.values())

    def same(self, obj: Any, state: State) -> bool:
        return Kind.same(self, obj, state)

    def apply(self, obj: Any, content: Any) -> None:
        kind, names, values = content
        if type(obj) is not kind:
            obj.__class__ = kind
        self.set_attributes(obj, dict(zip(names, values, strict=True)))


def is_optimizer_type(kind: type) -> bool:
    """Whether it is one of torch's optimizers, whose pickling drops what schedulers and the student added."""
    return issubclass(kind, imported("torch.optim", "Optimizer"))


class FrameKind(WholeKind):
    """`DataFrame`, `Series`, `Index`; what pandas can compute again is not sent."""

    name = "pandas"

    def lasting(self, obj: Any) -> dict[str, Any]:
        accessors = getattr(type(obj), "_accessors", ())
        return {name: value for name, value in obj.__dict__.items() if name != _CACHE and name not in accessors}

    def set_attributes(self, obj: Any, attributes: dict[str, Any]) -> None:
        super().set_attributes(obj, attributes)
        owners = attributes.get("_references")
        if owners is not None and not any(known() is obj for known in owners.referenced_blocks):
            owners.add_index_reference(obj)
        if isinstance(obj, sys.modules["pandas"].Index):
            obj.__dict__[_CACHE] = {}


class ArrowColumnKind(WholeKind):
    """Text and other columns in Arrow arrays, with their chunks; pandas' own pickling joins the chunks."""

    name = "pandas arrow column"

    def lasting(self, obj: Any) -> dict[str, Any]:
        return {name: value for name, value in obj.__dict__.items() if name != _CACHE}

    def set_attributes(self, obj: Any, attributes: dict[str, Any]) -> None:
        super().set_attributes(obj, attributes)
        obj.__dict__[_CACHE] = {}


class BlockKind(ReducedKind):
    """The memory of some columns. Its fields are in C, so a changed one is sent again."""

    name = "pandas block"

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new,)

    def form(self, obj: Any) -> ReducedForm:
        function, arguments = obj.__reduce__()[:2]
        return self._anchors[0], (function, tuple(arguments), obj.refs), None, [], []

    def reduce(self, obj: Any) -> Any:
        return self.form(obj)[:2]  # type: ignore[index]

    def new(self, function: Callable[..., Any], arguments: tuple[Any, ...], owners: Any) -> Any:
        block = function(*arguments)
        if owners is not None:
            block.refs = owners
            owners.add_reference(block)
        return block


class SeriesManagerKind(ReducedKind):
    """The manager of a series's block; its own pickling takes the block apart."""

    name = "pandas series manager"

    def form(self, obj: Any) -> ReducedForm:
        return type(obj), (obj.blocks[0], obj.axes[0]), None, [], []

    def reduce(self, obj: Any) -> Any:
        return self.form(obj)[:2]  # type: ignore[index]


class Elsewhere(weakref.ref[Any]):
    """Represents an owner in the other kernel in a list of owners: a weak reference to an object that never dies."""

    __slots__ = ()


class OwnersKind(Kind):
    """The list of owners of the same memory; only their number is sent.

    Each end sends its number to the other, because either may have owners that the other has not, or no longer.
    """

    name = "pandas owners"
    changes = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new, self.apply)
        self._received: list[tuple[Any, int]] = []
        self._sent: dict[int, int] = {}  # by id: the number that was sent last, if it is not 1
        self._before: dict[int, int] = {}  # the same before the last message

    def new(self) -> Any:
        made = sys.modules[_INTERNALS].BlockValuesRefs()
        made.referenced_blocks = []
        self._sent.pop(id(made), None)
        return made

    def reduce(self, obj: Any) -> Any:
        return self._anchors[0], (), self.content(obj, self.read(obj)), None, None, self._anchors[1]

    def read(self, obj: Any) -> State:
        return len(self._here(obj))

    def same(self, obj: Any, state: State) -> bool:
        return bool(self._sent.get(id(obj), 1) == self.read(obj))

    def content(self, obj: Any, state: State) -> Any:
        self._before.setdefault(id(obj), self._sent.get(id(obj), 1))
        self._sent[id(obj)] = state
        return state

    def begin(self) -> None:
        """Called before a message is sent."""
        self._before.clear()

    def take_back(self) -> None:
        """The other end did not get the last message."""
        self._sent.update(self._before)
        self._before.clear()

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return ()

    def apply(self, obj: Any, content: Any) -> None:
        self._received.append((obj, content))

    def settle(self) -> None:
        """Called after a message: all owners in it have registered by now."""
        for obj, count in self._received:
            here = self._here(obj)
            obj.referenced_blocks = [*here, Elsewhere(OwnersKind)] if count > 1 else here
        self._received.clear()

    def _here(self, obj: Any) -> list[Any]:
        return [known for known in obj.referenced_blocks if type(known) is not Elsewhere and known() is not None]
