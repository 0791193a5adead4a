"""Global variables of functions that the notebook's namespace does not contain.

* Those of functions that belong to no imported module: of a script under `%run`, or of `exec`. Such functions own their
  variables together, as closures own theirs. The other kernel has one dictionary for each such dictionary here.
* Those of the student's own modules, which each kernel has imported. In the other kernel the values replace the
  module's own (`places.py`).

Only variables that the code names are sent, each as an object of its own, so functions that travel later may name more
of them. A variable of a module stays as it is in each kernel while its value holds something that cannot travel.

The other kernel may be unable to import a module that code only might import. Then it keeps the module's variables
apart, has stand-ins for functions and classes of the module, and the code meets the error at its own import.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any
from weakref import WeakValueDictionary

import cloudpickle

from baton_shim.base.bytecode import code_names, imports
from baton_shim.base.closure import code_of, globals_named, own_module, own_modules, owns_globals, package_of
from baton_shim.base.examine import is_a, of_type
from baton_shim.state.kinds.base import ATOMS, Here, Kind, State
from baton_shim.state.rebuilding import NotFound, not_imported, said
from baton_shim.state.refusal import StandIn, stand_in_text

_CODE = (ModuleType, type, FunctionType, BuiltinFunctionType)
_OF_BATON = ("baton", "baton_shim")


class Variables:
    """A dictionary of global variables. `module`: the imported module that it belongs to, if any."""

    __slots__ = ("__weakref__", "by_name", "imported", "missing", "module", "values")

    def __init__(self, values: dict[str, Any], module: str = "", missing: str = "") -> None:
        """`missing`: why the module cannot be imported here."""
        self.values, self.module, self.missing = values, module, missing
        self.by_name: dict[str, Variable] = {}
        self.imported = Import(self)

    def named(self, name: str) -> Variable:
        return self.by_name.get(name) or self.by_name.setdefault(name, Variable(self, name))


class Import:
    """One of the student's own modules that code may import, with the variables that its code uses."""

    __slots__ = ("among",)

    def __init__(self, among: Variables) -> None:
        self.among = among

    def module(self) -> ModuleType | None:
        return sys.modules.get(self.among.module)


class Variable:
    """One of them, which may have no value."""

    __slots__ = ("among", "name", "sent")

    def __init__(self, among: Variables, name: str) -> None:
        self.among, self.name = among, name
        self.sent = 0
        """The identity of the last value that was found to hold nothing that stays."""

    def __str__(self) -> str:
        return f"{self.among.module}.{self.name}"

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
        self._anchors = (self.new, self.of_module, self.find, settle)
        self._known = WeakValueDictionary[int, Variables]()  # the states of known functions keep them alive
        self._apart = WeakValueDictionary[str, Variables]()  # those of modules that could not be imported here

    def new(self) -> Variables:
        return self.of_dict({"__builtins__": builtins})

    def of_module(self, name: str) -> Variables:
        """If the module cannot be imported here, its variables are kept apart until it can."""
        try:
            return self.of_dict(vars(importlib.import_module(name)), name)
        except (Exception, SystemExit) as error:
            return self._apart.setdefault(name, Variables({}, name, said(error)))

    def of_dict(self, values: dict[str, Any], module: str = "") -> Variables:
        found = self._known.get(id(values))
        if found is None:
            found = self._apart.pop(module, None) or Variables({}, module)
            values.update(found.values)
            found.values = values
            self._known[id(values)] = found
        return found

    def imports_of(self, modules: Iterable[ModuleType]) -> tuple[Import, ...]:
        return tuple(self.of_dict(vars(one), one.__name__).imported for one in modules)

    def imported_by(self, function: FunctionType) -> tuple[Import, ...]:
        """Own modules that it imports, so that the other kernel's ones are the same when it runs."""
        return self.imports_of(own_modules(imports(function.__code__, package_of(function)))) if self.own else ()

    def of_function(self, function: FunctionType) -> tuple[Variable | Import, ...]:
        """Those that a function uses which is sent itself."""
        if owns_globals(function):
            found = self.of_dict(function.__globals__)
            return *map(found.named, sorted(globals_named(function))), *self.imported_by(function)
        return tuple(self._of_own(function))

    def of_code(self, obj: Any) -> tuple[Variable | Import, ...] | None:
        """Those that a function, class or module uses, if it is found by its name in an own module."""
        if not self.own or own_module(obj) is None or not is_found(obj):
            return None
        return tuple(dict.fromkeys(self._of_own(obj)))

    def found_with(self, obj: Any, variables: tuple[Variable | Import, ...]) -> tuple[Any, ...]:
        """The reduced form of such a function or class."""
        *_, find, settle = self._anchors
        return find, (own_module(obj), obj.__qualname__), variables, None, None, settle

    def find(self, module: str, name: str) -> Any:
        apart = self._apart.get(module) if module not in sys.modules else None
        if apart is not None:
            return self._absent(module, name, apart.missing)
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
            return found
        except Exception as error:
            if not self.here.home:  # the cell has not run
                raise
            return self._absent(module, name, said(error))

    def _absent(self, module: str, name: str, reason: str) -> StandIn:
        text = not_imported(module, name, reason, self.here.home)
        if self.here.home:
            raise NotFound(text)
        return StandIn(self.here.note_absent(module, text))

    def excuse(self, stand_ins: Iterable[StandIn]) -> bool:
        """Whether all of them replace something of modules that code only might import."""
        modules = (self.here.absent.get(stand_in_text(one) or "") for one in stand_ins)
        return all(module in self._apart for module in modules)

    def _of_own(self, obj: Any) -> Iterator[Variable | Import]:
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


class ImportKind(Kind):
    name = "import"
    blind = True
    changes = True

    def __init__(self, here: Here, variables: VariablesKind) -> None:
        super().__init__(here)
        self._variables = variables
        self._anchors = (self.new, settle)

    def new(self, among: Variables) -> Import:
        return among.imported

    def reduce(self, obj: Any) -> Any:
        new, settle = self._anchors
        return new, (obj.among,), self.read(obj), None, None, settle

    def read(self, obj: Any) -> State:
        return self._variables.of_code(obj.module()) or ()

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return obj.among, *state

    def apply(self, obj: Any, content: Any) -> None:
        settle(obj, content)


class VariableKind(Kind):
    """The state is a tuple with the value; an empty one if there is none; None and the reason if the value stays."""

    name = "variable"
    blind = True
    changes = True

    def __init__(self, here: Here, variables: VariablesKind, why_it_stays: Callable[[Any], str | None]) -> None:
        """`why_it_stays`: None if a value can be sent; an empty text if the value itself, and not a part, cannot."""
        super().__init__(here)
        self._variables, self._why_it_stays = variables, why_it_stays
        self._anchors = (Variables.named, self.begin)
        self._staying: dict[str, str] = {}
        self._reported: set[str] = set()

    def reduce(self, obj: Any) -> Any:
        named, begin = self._anchors
        return named, (obj.among, obj.name), self.read(obj), None, None, begin

    def read(self, obj: Any) -> State:
        values = obj.among.values
        if obj.name not in values:
            return ()
        value = values[obj.name]
        if not obj.among.module or type(value) in ATOMS:
            return (value,)
        if type(value) is ModuleType and own_module(value) is not None:
            return self._variables.imports_of((value,))
        if obj.sent == id(value):  # while it is known, its identity belongs to no other one
            return (value,)
        reason = self._why_it_stays(value)
        if reason is not None:
            self._note(obj, reason)
            return None, reason
        obj.sent = id(value)
        return (value,)

    def stays(self, obj: Variable) -> bool:
        return is_staying(self.read(obj))

    def _note(self, obj: Variable, reason: str) -> None:
        if reason:
            self._staying[str(obj)] = reason

    def take_staying(self) -> list[str]:
        """A line about each variable whose changes do not travel, although most of its value could."""
        news = {name: reason for name, reason in self._staying.items() if name not in self._reported}
        self._staying.clear()
        self._reported.update(news)
        return [f"{name} stays as it is in each kernel: it {reason}" for name, reason in news.items()]

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return obj.among, *state

    def begin(self, obj: Any, content: Any) -> None:
        """Sets the first value. If the notebook had loaded the module but never sent this variable, its value wins."""
        if not (obj.among.module in self.here.loaded and obj.name in obj.among.values):
            self.apply(obj, content)

    def apply(self, obj: Any, content: Any) -> None:
        if is_staying(content):
            self._note(obj, content[1])
            return
        if obj.among.module:
            content = [one.module() or one if type(one) is Import else one for one in content]
            if any(type(one) in (StandIn, Import) for one in content):  # this kernel lacks it
                return
        values, name = obj.among.values, obj.name
        if self.here.undo is not None:
            before = [(name, values[name])] if name in values else []
            self.here.undo.add(partial(set_entry, values, name, before))
        set_entry(values, name, [(name, value) for value in content])


def is_staying(state: State) -> bool:
    return len(state) == 2


def set_entry(values: dict[str, Any], name: str, now: list[tuple[str, Any]]) -> None:
    values.pop(name, None)
    values.update(now)


def settle(obj: Any, variables: tuple[Variable | Import, ...]) -> None:
    """The object is found by its name, so there is no state to apply; its variables travel as objects of their own."""


def is_found(obj: Any) -> bool:
    """Whether the name of a function, class or module leads to it."""
    return isinstance(obj, ModuleType) or bool(cloudpickle.cloudpickle._should_pickle_by_reference(obj))


def is_own(name: str, values: dict[str, Any]) -> bool:
    """Whether a variable is not each kernel's own: `__file__`, code of libraries, objects of this package."""
    value = values.get(name)
    if name.startswith("__") and name.endswith("__"):
        return False
    if is_a(value, *_CODE):
        return own_module(value) is not None or getattr(value, "__module__", None) == "__main__"
    return str(of_type(type(value), "__module__")).partition(".")[0] not in _OF_BATON
