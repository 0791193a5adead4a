"""Functions, closures and classes of the notebook.

A function consists of its code, its cells by identity and the *receiving* kernel's namespace: so it sees later
assignments there, recursion finds the name's new binding, and two closures go on sharing a `nonlocal` variable.
Classes are cloudpickle's work (its tracker keeps `isinstance` over the round trip); their methods come by here.
"""

from __future__ import annotations

import abc
import enum
import types
from collections.abc import Iterable, Iterator
from typing import Any

from baton_shim.state.kinds.base import Here, Kind, State

_CLASS_INTERNALS = frozenset(
    "__dict__ __weakref__ __doc__ __module__ __qualname__ _abc_impl __abstractmethods__ __static_attributes__ "
    "__firstlineno__ __slotnames__ __annotate_func__ __annotations_cache__".split()
)


_REGISTERED = "(registered)"


def registered(kind: type) -> tuple[type, ...]:
    """The classes that an abstract one counts as its own."""
    if not isinstance(kind, abc.ABCMeta):
        return ()
    found = (known() for known in abc._get_dump(kind)[0])  # type: ignore[attr-defined]
    return tuple(sorted((one for one in found if one is not None), key=id))


class FunctionKind(Kind):
    name = "function"
    blind = True
    changes = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new, self.set_state, types.CellType)

    def ours(self, function: types.FunctionType) -> bool:
        return function.__globals__ is self.here.namespace

    def new(self, code: types.CodeType, name: str, cells: tuple[types.CellType, ...] | None) -> types.FunctionType:
        return types.FunctionType(code, self.here.namespace, name, None, cells or None)

    def reduce(self, obj: Any) -> Any:
        if not self.ours(obj):
            return None
        new, set_state, _ = self._anchors
        return new, (obj.__code__, obj.__name__, obj.__closure__), self._state(obj), None, None, set_state

    def read(self, obj: Any) -> State:
        return (obj.__code__, self._state(obj)) if self.ours(obj) else None

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        if state is None:
            return
        code, (defaults, keywords, attributes, names) = state
        yield code
        yield from obj.__closure__ or ()
        yield from defaults or ()
        for pairs in (keywords, attributes, names[3]):
            yield from (value for _, value in pairs or ())

    def apply(self, obj: Any, content: Any) -> None:
        if content is not None:
            obj.__code__, state = content
            self.set_state(obj, state)

    def _state(self, function: types.FunctionType) -> tuple[Any, ...]:
        names = (function.__qualname__, function.__module__, function.__doc__, tuple(function.__annotations__.items()))
        keywords = function.__kwdefaults__
        pairs = None if keywords is None else tuple(keywords.items())
        return function.__defaults__, pairs, tuple(function.__dict__.items()), names

    def set_state(self, function: types.FunctionType, state: tuple[Any, ...]) -> None:
        function.__defaults__, keywords, attributes, (qualified, module, doc, annotations) = state
        function.__kwdefaults__ = None if keywords is None else dict(keywords)
        function.__qualname__, function.__module__, function.__doc__ = qualified, module, doc
        function.__annotations__ = dict(annotations)
        function.__dict__.clear()
        function.__dict__.update(attributes)


class CellKind(Kind):
    """A closure's variable; an empty one is an empty tuple."""

    name = "cell"
    blind = True
    changes = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new, self.apply)

    def new(self) -> types.CellType:
        return types.CellType()

    def reduce(self, obj: Any) -> Any:
        new, apply = self._anchors
        return new, (), self.read(obj), None, None, apply

    def read(self, obj: Any) -> State:
        try:
            return (obj.cell_contents,)
        except ValueError:
            return ()

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return state  # type: ignore[no-any-return]

    def apply(self, obj: Any, content: Any) -> None:
        if content:
            obj.cell_contents = content[0]
        elif self.read(obj):
            del obj.cell_contents


class ClassKind(Kind):
    """A class of the notebook; classes of modules are references."""

    name = "class"
    blind = True
    changes = True

    def read(self, obj: Any) -> State:
        if obj.__module__ != "__main__" or issubclass(obj, enum.Enum):
            return None
        own = tuple((name, value) for name, value in vars(obj).items() if name not in _CLASS_INTERNALS)
        return (*own, (_REGISTERED, registered(obj))) if isinstance(obj, abc.ABCMeta) else own

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        if getattr(obj, "__module__", None) == "__main__":
            yield from obj.__bases__
            yield type(obj)
            yield from tuple(vars(obj).values())
            yield from registered(obj)

    def apply(self, obj: Any, content: Any) -> None:
        attributes = dict(content or ())
        for kind in attributes.pop(_REGISTERED, ()):
            obj.register(kind)
        for name in set(vars(obj)) - set(attributes) - _CLASS_INTERNALS:
            delattr(obj, name)
        for name, value in attributes.items():
            if vars(obj).get(name) is not value:
                try:
                    type.__setattr__(obj, name, value)
                except (AttributeError, TypeError):
                    pass  # descriptors of slots, and the like: fixed when the class was made
