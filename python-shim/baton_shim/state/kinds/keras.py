"""Models of Keras 3 and their parts: layers, optimizers, losses, metrics.

Keras pickles each of them as a file, from which it would build a model with new layers and variables. So each is sent
as its attributes. Where an attribute contains addresses of objects, the objects are sent in its place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from baton_shim.state.kinds.base import Here, State, imported
from baton_shim.state.kinds.frames import WholeKind
from baton_shim.state.refusal import StandIn

Entry = tuple[Any, Any]
"""An object, and what the attribute records about it."""


class Addresses(NamedTuple):
    """How an attribute with addresses becomes entries, and how entries become the attribute."""

    entries: Callable[[Any, Any], Iterator[Entry]]
    attribute: Callable[[Any, tuple[Entry, ...]], Any]


class KerasKind(WholeKind):
    name = "keras"

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.bare, self.set_attributes)

    def reduce(self, obj: Any) -> Any:
        bare, set_attributes = self._anchors
        return bare, (type(obj), backend()), self.lasting(obj), None, None, set_attributes

    def bare(self, kind: Any, made_with: str) -> Any:
        if made_with == backend():
            return object.__new__(kind)
        there, here = ("on the GPU machine", "in your notebook") if self.here.home else ("in your notebook", "there")
        return StandIn(
            f"this {kind.__name__} of Keras was made {there} with the backend {made_with!r}, but Keras uses "
            f"{backend()!r} {here}",
            "restart the kernel, and set KERAS_BACKEND in an ordinary cell before any cell imports keras",
        )

    def lasting(self, obj: Any) -> dict[str, Any]:
        attributes = super().lasting(obj)
        for name, how in addresses_in(type(obj)).items():
            if name in attributes:
                attributes[name] = tuple(how.entries(obj, attributes[name]))
        return attributes

    def set_attributes(self, obj: Any, attributes: dict[str, Any]) -> None:
        if type(obj) is StandIn:
            return
        super().set_attributes(obj, attributes)
        for name, how in addresses_in(type(obj)).items():
            if name in attributes:
                obj.__dict__[name] = how.attribute(obj, attributes[name])

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        kind, names, values = state
        with_addresses = addresses_in(kind)
        yield kind
        for name, value in zip(names, values, strict=True):
            yield from (one for one, _ in value) if name in with_addresses else (value,)


def backend() -> str:
    name: str = sys.modules["keras"].backend.backend()
    return name


def tracked(tracker: Any, _: Any) -> Iterator[Entry]:
    return ((value, name) for name, (_, store) in tracker.config.items() for value in store)


def addresses_of_tracked(tracker: Any, entries: tuple[Entry, ...]) -> dict[str, set[int]]:
    return {store: {id(value) for value, name in entries if name == store} for store in tracker.config}


def numbered(optimizer: Any, numbers: dict[Any, int]) -> Iterator[Entry]:
    keys = ((variable, optimizer._var_key(variable)) for variable in optimizer._trainable_variables)
    return ((variable, numbers[key]) for variable, key in keys if key in numbers)


def numbers_by_key(optimizer: Any, entries: tuple[Entry, ...]) -> dict[Any, int]:
    return {optimizer._var_key(variable): number for variable, number in entries}


def in_graph(function: Any, keys: set[str]) -> Iterator[Entry]:
    nodes = ((one, index) for one in function._operations for index in range(len(one._inbound_nodes)))
    return (node for node in nodes if key_in_graph(*node) in keys)


def keys_in_graph(_: Any, entries: tuple[Entry, ...]) -> set[str]:
    return {key_in_graph(*node) for node in entries}


def key_in_graph(operation: Any, index: int) -> str:
    key: str = sys.modules["keras.src.ops.function"].make_node_key(operation, index)
    return key


_NUMBERED = Addresses(numbered, numbers_by_key)
_ADDRESSES = {
    ("keras.src.utils.tracking", "Tracker", "stored_ids"): Addresses(tracked, addresses_of_tracked),
    ("keras.src.optimizers.base_optimizer", "BaseOptimizer", "_trainable_variables_indices"): _NUMBERED,
    ("keras.src.optimizers.multi_optimizer", "MultiOptimizer", "_var_to_optimizer_idx"): _NUMBERED,
    ("keras.src.ops.function", "Function", "_nodes"): Addresses(in_graph, keys_in_graph),
}


def addresses_in(kind: type) -> dict[str, Addresses]:
    return {name: how for (*owner, name), how in _ADDRESSES.items() if issubclass(kind, imported(*owner))}


def is_keras_type(kind: Any) -> bool:
    saveable = imported("keras.src.saving.keras_saveable", "KerasSaveable")
    if issubclass(kind, saveable):
        return bool(kind.__reduce__ is saveable.__reduce__)
    return issubclass(kind, imported("keras.src.utils.tracking", "Tracker"))
