"""TensorFlow's variables, its functions (`tf.function`), which each kernel traces for itself, and its default strategy,
of which each kernel has its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from baton_shim.state.kinds.base import Here, Kind, State, imported
from baton_shim.state.kinds.frames import WholeKind
from baton_shim.state.kinds.reduced import Frozen, inside, same_form
from baton_shim.state.refusal import StandIn

_VARIABLES = "tensorflow.python.ops.resource_variable_ops"
_CONCRETE = "tensorflow.python.eager.polymorphic_function.concrete_function"
_TRACES = frozenset(
    (
        *("_created_variables", "_variable_creation_config", "_no_variable_creation_config"),
        *("_concrete_variable_creation_fn", "_function_cache", "_function_captures"),
    )
)


class TensorFlowVariableKind(Kind):
    """A twin would have another `_unique_id`, by which optimizers find their variables."""

    name = "tensorflow variable"
    changes = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new, self.apply)

    def reduce(self, obj: Any) -> Any:
        return self._anchors[0], (arguments_of(obj),)

    def new(self, arguments: dict[str, Any]) -> Any:
        return sys.modules[_VARIABLES].ResourceVariable(**arguments)

    def read(self, obj: Any) -> State:
        return Frozen(arguments_of(obj).values())

    def same(self, obj: Any, state: State) -> bool:
        return same_form(self.read(obj), state)

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return inside(state)

    def content(self, obj: Any, state: State) -> Any:
        return obj.numpy()

    def must_be_replaced(self, obj: Any, old: State) -> bool:
        return not same_form(self.read(obj)[1:], old[1:])

    def apply(self, obj: Any, content: Any) -> None:
        obj.assign(content)


class TracedKind(WholeKind):
    """A function of `tf.function`, without its traces, which refer to the process that made them."""

    name = "tensorflow function"

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.make, self.set_attributes)

    def reduce(self, obj: Any) -> Any:
        make, set_attributes = self._anchors
        return make, (type(obj), obj._python_function, obj._name), self.lasting(obj), None, None, set_attributes

    def make(self, kind: Any, function: Any, name: str) -> Any:
        return kind(function, name)

    def lasting(self, obj: Any) -> dict[str, Any]:
        return {name: value for name, value in obj.__getstate__().items() if name not in _TRACES}

    def set_attributes(self, obj: Any, attributes: dict[str, Any]) -> None:
        obj.__dict__.update(attributes)


class TraceKind(Kind):
    """Traces that are not in a function of `tf.function`, such as those that a wrapper copied from it."""

    name = "tensorflow trace"
    blind = True

    def reduce(self, obj: Any) -> Any:
        if not isinstance(obj, imported(_CONCRETE, "ConcreteFunction")):
            return type(obj), ()  # a cache
        text = f"a concrete function of TensorFlow {self.here.where_it_is}"
        return StandIn, (text, "call get_concrete_function inside the cell", True)


class StrategyKind(Kind):
    name = "tensorflow strategy"
    blind = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.find,)

    def reduce(self, obj: Any) -> Any:
        return self._anchors[0], ()

    def find(self) -> Any:
        return sys.modules["tensorflow"].distribute.get_strategy()


def arguments_of(variable: Any) -> dict[str, Any]:
    """The arguments with which its own pickling builds it; the value is the first."""
    build, _ = variable.__reduce__()
    return dict(build.keywords)


def is_variable_type(kind: type) -> bool:
    return issubclass(kind, imported(_VARIABLES, "BaseResourceVariable"))


def is_traced_type(kind: type) -> bool:
    return issubclass(kind, imported("tensorflow.python.eager.polymorphic_function.polymorphic_function", "Function"))


def is_trace_type(kind: type) -> bool:
    caches = (
        imported("tensorflow.core.function.polymorphism.function_cache", "FunctionCache"),
        imported("tensorflow.core.function.capture.capture_container", "FunctionCaptures"),
    )
    return issubclass(kind, (imported(_CONCRETE, "ConcreteFunction"), *caches))


def is_strategy_type(kind: type) -> bool:
    return issubclass(kind, imported("tensorflow.python.distribute.distribute_lib", "_DefaultDistributionStrategy"))
