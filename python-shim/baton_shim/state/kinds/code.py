"""Functions, closures and classes of the notebook.

A function consists of its code, its cells by identity, and the *receiving* kernel's namespace. So it sees later
assignments there, recursion finds a new binding of its name, and two closures still share a `nonlocal` variable.
A library's function without a name of its own, such as those that `singledispatch` creates, is bound to the library's
module. A function that belongs to no imported module brings its global variables (`variables.py`). Classes are pickled
by cloudpickle (its tracker preserves `isinstance` after a round trip); their methods pass through here.
"""

from __future__ import annotations

import abc
import ctypes
import enum
import importlib
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cloudpickle

from baton_shim.base.annotations import annotations_of
from baton_shim.base.closure import owns_globals
from baton_shim.state.kinds.base import Here, Kind, State, alike
from baton_shim.state.kinds.classes import CLASS_INTERNALS, enumeration_state, update_enumeration
from baton_shim.state.kinds.libraries import class_of_functions
from baton_shim.state.kinds.variables import Variables, VariablesKind

_OF_CTYPES: dict[Any, Any] = {
    type(kind): kind
    for kind in (
        ctypes.Structure,
        ctypes.Union,
        ctypes.Array,
        ctypes._SimpleCData,
        ctypes._Pointer,
        ctypes.CFUNCTYPE(None),
    )
}
_REGISTERED = "(registered)"
_ITSELF = "(itself)"
_OF_ITSELF = ("__name__", "__qualname__", "__doc__", "__bases__")


def itself(kind: Any) -> tuple[Any, ...]:
    return kind.__name__, kind.__qualname__, vars(kind).get("__doc__"), kind.__bases__


def registered(kind: type) -> tuple[type, ...]:
    """The classes that are registered with an abstract class."""
    if not isinstance(kind, abc.ABCMeta):
        return ()
    found = (known() for known in abc._get_dump(kind)[0])  # type: ignore[attr-defined]
    return tuple(sorted((one for one in found if one is not None), key=id))


def array_type(of: Any, length: int, module: str) -> Any:
    """ctypes has one class for each array type, and gives it the module that requested it first."""
    kind = of * length
    kind.__module__ = module
    return kind


def pointer_type(of: Any, module: str) -> Any:
    kind = ctypes.POINTER(of)
    kind.__module__ = module
    return kind


def in_other_byte_order(kind: Any) -> tuple[Any, str] | None:
    """For a number in the byte order that this machine does not use, as in a `BigEndianStructure`: the class of the
    usual one, and the attribute with this one.
    """
    for suffix, order, usual in (("_be", "__ctype_be__", "__ctype_le__"), ("_le", "__ctype_le__", "__ctype_be__")):
        found = vars(kind).get(usual)
        if kind.__name__.endswith(suffix) and found is not kind and getattr(found, order, None) is kind:
            return found, order
    return None


class FunctionKind(Kind):
    name = "function"
    blind = True
    changes = True
    variables: VariablesKind

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new, self.set_state, types.CellType, self.new_of_module, self.new_with_globals)

    def ours(self, function: types.FunctionType) -> bool:
        return function.__globals__ is self.here.namespace

    def new(self, code: types.CodeType, name: str, cells: tuple[types.CellType, ...] | None) -> types.FunctionType:
        return types.FunctionType(code, self.here.namespace, name, None, cells or None)

    def new_of_module(
        self, module: str, code: types.CodeType, name: str, cells: tuple[types.CellType, ...] | None
    ) -> types.FunctionType:
        return types.FunctionType(code, importlib.import_module(module).__dict__, name, None, cells or None)

    def new_with_globals(
        self, variables: Variables, code: types.CodeType, name: str, cells: tuple[types.CellType, ...] | None
    ) -> types.FunctionType:
        return types.FunctionType(code, variables.values, name, None, cells or None)

    def reduce(self, obj: Any) -> Any:
        new, set_state, _, new_of_module, new_with_globals = self._anchors
        parts = obj.__code__, obj.__name__, obj.__closure__
        if self.ours(obj):
            return new, parts, self._state(obj), None, None, set_state
        if has_name(obj):
            variables = self.variables.of_code(obj)
            return self.variables.found_with(obj, variables) if variables else None
        if owns_globals(obj):
            own = self.variables.of_dict(obj.__globals__)
            return new_with_globals, (own, *parts), self._state(obj), None, None, set_state
        module = obj.__globals__["__name__"]
        return new_of_module, (module, *parts), self._state(obj), None, None, set_state

    def read(self, obj: Any) -> State:
        if self.ours(obj) or not has_name(obj):
            return obj.__code__, self._state(obj)
        return self.variables.of_code(obj)

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        if not is_whole(state):
            yield from state or ()
            return
        code, (defaults, keywords, attributes, names, variables) = state
        yield from variables
        *_, annotations, annotate, type_parameters = names
        yield code
        yield from obj.__closure__ or ()
        yield from defaults or ()
        for pairs in (keywords, attributes, annotations):
            yield from (value for _, value in pairs or ())
        yield annotate
        yield from type_parameters

    def apply(self, obj: Any, content: Any) -> None:
        if is_whole(content):
            obj.__code__, state = content
            self.set_state(obj, state)

    def _state(self, function: types.FunctionType) -> tuple[Any, ...]:
        own_names = function.__qualname__, function.__module__, function.__doc__
        names = (*own_names, *annotations_of(function), getattr(function, "__type_params__", ()))
        keywords = function.__kwdefaults__
        pairs = None if keywords is None else tuple(keywords.items())
        own = self.ours(function)
        variables = self.variables.imported_by(function) if own else self.variables.of_function(function)
        return function.__defaults__, pairs, tuple(function.__dict__.items()), names, variables

    def set_state(self, function: types.FunctionType, state: tuple[Any, ...]) -> None:
        function.__defaults__, keywords, attributes, names, _ = state
        qualified, module, doc, annotations, annotate, type_parameters = names
        function.__kwdefaults__ = None if keywords is None else dict(keywords)
        function.__qualname__, function.__module__, function.__doc__ = qualified, module, doc
        if annotations is None:
            function.__annotate__ = annotate  # type: ignore[attr-defined]
        else:
            function.__annotations__ = dict(annotations)
        if type_parameters:
            function.__type_params__ = type_parameters  # type: ignore[attr-defined]
        function.__dict__.clear()
        function.__dict__.update(attributes)


def is_whole(state: State) -> bool:
    """Whether it is the state of a function that is sent itself, and not by its name."""
    return bool(state) and type(state[0]) is types.CodeType


def has_name(function: types.FunctionType) -> bool:
    """Whether a name of an imported module leads to it."""
    return bool(cloudpickle.cloudpickle._should_pickle_by_reference(function))


class CellKind(Kind):
    """The variable of a closure; the state of an empty one is an empty tuple."""

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


def is_class_type(kind: type) -> bool:
    return issubclass(kind, type)


class ClassKind(Kind):
    """A class of the notebook; classes of modules are references."""

    name = "class"
    blind = True
    changes = True
    functions_of: Callable[[Any], Any]  # returns the class of a library's functions
    variables: VariablesKind

    def reduce(self, obj: Any) -> Any:
        """Handles ctypes classes that have no names: `c_int * 3`, `POINTER(c_int)`, and classes of classes."""
        metaclass: Any = type(obj)
        if obj in _OF_CTYPES:
            return type, (_OF_CTYPES[obj],)
        if metaclass is type(ctypes.Array) and obj.__bases__ == (ctypes.Array,):
            return array_type, (obj._type_, obj._length_, obj.__module__)
        if metaclass is type(ctypes._Pointer) and obj.__bases__ == (ctypes._Pointer,):
            return pointer_type, (obj._type_, obj.__module__)
        if metaclass is type(ctypes._SimpleCData) and (place := in_other_byte_order(obj)) is not None:
            return getattr, place
        if variables := self.variables.of_code(obj):
            return self.variables.found_with(obj, variables)
        return class_of_functions(obj, self.functions_of)

    def read(self, obj: Any) -> State:
        if obj.__module__ != "__main__":
            return self.variables.of_code(obj)
        if issubclass(obj, enum.Enum):
            return enumeration_state(obj)
        own = tuple((name, value) for name, value in vars(obj).items() if name not in CLASS_INTERNALS)
        return (*own, (_ITSELF, itself(obj)), (_REGISTERED, registered(obj)))

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        if getattr(obj, "__module__", None) == "__main__":
            yield from obj.__bases__
            yield type(obj)
            yield from tuple(vars(obj).values())
            yield from registered(obj)
        elif state is not None:
            yield from state
            return
        if state is not None and issubclass(obj, enum.Enum):
            own, members = state
            yield from (value for _, attributes in ((None, own), *members) for _, value in attributes)

    def apply(self, obj: Any, content: Any) -> None:
        if obj.__module__ != "__main__":
            return
        if issubclass(obj, enum.Enum):
            update_enumeration(obj, *content)
            return
        attributes = dict(content)
        of_itself = attributes.pop(_ITSELF)
        for kind in attributes.pop(_REGISTERED, ()):
            obj.register(kind)
        for name in set(vars(obj)) - set(attributes) - CLASS_INTERNALS:
            type.__delattr__(obj, name)
        changed = [(name, value) for name, value in attributes.items() if vars(obj).get(name) is not value]
        changed += [
            (name, value)
            for name, value, now in zip(_OF_ITSELF, of_itself, itself(obj), strict=True)
            if not alike(value, now)
        ]
        for name, value in changed:
            try:
                type.__setattr__(obj, name, value)
            except (AttributeError, TypeError):
                pass  # slot descriptors and the like: fixed since the class was created
