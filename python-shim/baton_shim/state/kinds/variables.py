"""Global variables of functions that the notebook's namespace does not contain.

* Those of functions that belong to no imported module: of a script under `%run`, or of `exec`. Such functions own their
  variables together, as closures own theirs. The other kernel has one dictionary for each such dictionary here.
* Those of the student's own modules, which each kernel has imported. In the other kernel the values replace the
  module's own (`places.py`).

Only variables that the code names are sent, each as an object of its own, so functions that travel later may name more
of them. A variable of a module stays as it is in each kernel if its value holds something that cannot travel.
"""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any
from weakref import WeakValueDictionary

import cloudpickle

from baton_shim.base.bytecode import code_names, imports
from baton_shim.base.closure import code_of, globals_named, own_module, own_modules, owns_globals
from baton_shim.state.kinds.base import ATOMS, Here, Kind, State
from baton_shim.state.refusal import StandIn

_STAYS = (None, None)
"""The state of a variable that is not sent."""
_CODE = (ModuleType, type, FunctionType, BuiltinFunctionType)
_OF_BATON = ("baton", "baton_shim")


class Variables:
    """A dictionary of global variables. `module`: the imported module that it belongs to, if any."""

    __slots__ = ("__weakref__", "by_name", "module", "values")

    def __init__(self, values: dict[str, Any], module: str = "") -> None:
        self.values, self.module = values, module
        self.by_name: dict[str, Variable] = {}

    def named(self, name: str) -> Variable:
        return self.by_name.get(name) or self.by_name.setdefault(name, Variable(self, name))


class Variable:
    """One of them, which may have no value."""

    __slots__ = ("among", "name", "sent", "stays")

    def __init__(self, among: Variables, name: str) -> None:
        self.among, self.name = among, name
        self.sent = 0
        """The identity of the last value that was found to hold nothing that stays."""
        self.stays: object = None
        """The last value that holds something that stays."""

    def is_assigned(self) -> bool:
        """Whether a function assigns it."""
        functions = (function for value in tuple(self.among.values.values()) for function in code_of(value))
        return any(self.name in code_names(function.__code__).stores for function in functions)


class VariablesKind(Kind):
    """The dictionaries of one table. `own`: whether variables of the student's own modules are among them."""

    name = "variables"
    blind = True

    def __init__(self, here: Here, *, own: bool) -> None:
        super().__init__(here)
        self.own = own
        self._anchors = (self.new, self.of_module, find, settle)
        self._known = WeakValueDictionary[int, Variables]()  # the states of known functions keep them alive

    def new(self) -> Variables:
        return self.of_dict({"__builtins__": builtins})

    def of_module(self, name: str) -> Variables:
        return self.of_dict(vars(importlib.import_module(name)), name)

    def of_dict(self, values: dict[str, Any], module: str = "") -> Variables:
        return self._known.get(id(values)) or self._known.setdefault(id(values), Variables(values, module))

    def imported_by(self, function: FunctionType) -> tuple[ModuleType, ...]:
        """Own modules that it imports, so that the other kernel's ones are the same when it runs."""
        return own_modules(imports(function.__code__)) if self.own else ()

    def of_function(self, function: FunctionType) -> tuple[Variable | ModuleType, ...]:
        """Those that a function uses which is sent itself."""
        if owns_globals(function):
            found = self.of_dict(function.__globals__)
            return *map(found.named, sorted(globals_named(function))), *self.imported_by(function)
        return tuple(self._of_own(function))

    def of_code(self, obj: Any) -> tuple[Variable | ModuleType, ...] | None:
        """Those that a function, class or module uses, if it is found by its name in an own module."""
        if not self.own or own_module(obj) is None or not is_found(obj):
            return None
        return tuple(dict.fromkeys(self._of_own(obj)))

    def found_with(self, obj: Any, variables: tuple[Variable | ModuleType, ...]) -> tuple[Any, ...]:
        """The reduced form of such a function, class or module."""
        *_, find, settle = self._anchors
        name = "" if isinstance(obj, ModuleType) else obj.__qualname__
        return find, (own_module(obj), name), variables, None, None, settle

    def _of_own(self, obj: Any) -> Iterator[Variable | ModuleType]:
        if not self.own:
            return
        if isinstance(obj, ModuleType):
            found = self.of_dict(vars(obj), obj.__name__)
            yield from (found.named(name) for name in tuple(vars(obj)) if is_own(name, found.values))
        for function in code_of(obj):
            yield from self.imported_by(function)
            if (module := own_module(function)) is not None:
                found = self.of_dict(function.__globals__, module)
                names = sorted(globals_named(function))
                yield from (found.named(name) for name in names if is_own(name, found.values))

    def reduce(self, obj: Any) -> Any:
        new, of_module, *_ = self._anchors
        return (of_module, (obj.module,)) if obj.module else (new, ())


class VariableKind(Kind):
    """The state of one without a value is an empty tuple."""

    name = "variable"
    blind = True
    changes = True

    def __init__(self, here: Here, holds_what_stays: Callable[[Any], bool]) -> None:
        super().__init__(here)
        self._holds_what_stays = holds_what_stays
        self._anchors = (Variables.named, self.begin)

    def reduce(self, obj: Any) -> Any:
        named, begin = self._anchors
        return named, (obj.among, obj.name), self.read(obj), None, None, begin

    def read(self, obj: Any) -> State:
        values = obj.among.values
        if obj.name not in values:
            return ()
        value = values[obj.name]
        return _STAYS if obj.among.module and type(value) not in ATOMS and self._stays_here(obj, value) else (value,)

    def _stays_here(self, variable: Variable, value: object) -> bool:
        """Examines a value once: while it is known, its identity belongs to no other one."""
        if variable.sent == id(value):
            return False
        if variable.stays is not value:
            variable.sent, variable.stays = (0, value) if self._holds_what_stays(value) else (id(value), None)
        return variable.stays is value

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return obj.among, *state

    def begin(self, obj: Any, content: Any) -> None:
        """The first value. A session that did not have the notebook's one does not know better than the notebook."""
        if not (self.here.home and obj.among.module in self.here.loaded):
            self.apply(obj, content)

    def apply(self, obj: Any, content: Any) -> None:
        if content == _STAYS or (obj.among.module and any(type(value) is StandIn for value in content)):
            return
        values, name = obj.among.values, obj.name
        if self.here.undo is not None:
            before = [(name, values[name])] if name in values else []
            self.here.undo.add(partial(set_entry, values, name, before))
        set_entry(values, name, [(name, value) for value in content])


def set_entry(values: dict[str, Any], name: str, now: list[tuple[str, Any]]) -> None:
    values.pop(name, None)
    values.update(now)


def find(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in filter(None, name.split(".")):
        found = getattr(found, part)
    return found


def settle(obj: Any, variables: tuple[Variable | ModuleType, ...]) -> None:
    """What refers to the variables is found by its name, and so has no state of its own to apply."""


def is_found(obj: Any) -> bool:
    """Whether the name of a function, class or module leads to it."""
    return isinstance(obj, ModuleType) or bool(cloudpickle.cloudpickle._should_pickle_by_reference(obj))


def is_own(name: str, values: dict[str, Any]) -> bool:
    """Whether a variable is not each kernel's own: `__file__`, code of libraries, objects of this package."""
    value = values.get(name)
    if name.startswith("__") and name.endswith("__"):
        return False
    if isinstance(value, _CODE):
        return own_module(value) is not None or getattr(value, "__module__", None) == "__main__"
    return str(type(value).__module__).partition(".")[0] not in _OF_BATON
