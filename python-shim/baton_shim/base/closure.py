"""Follows values to the notebook's functions and classes that they hold, and follows those to the names that they use.

This finds what the cell can call through a value that it names: methods of an instance's class, callbacks in a list, a
decorated function behind its wrapper.

**Invariant:** references are read from the garbage collector; no attribute look-up runs the student's code.
"""

from __future__ import annotations

import builtins
import gc
import re
import sys
import weakref
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from datetime import datetime, time
from functools import lru_cache
from itertools import chain, islice
from traceback import walk_tb
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    ModuleType,
    TracebackType,
)
from typing import Any

from traitlets.config.configurable import SingletonConfigurable

from baton_shim.base.annotations import names_annotating
from baton_shim.base.bytecode import code_names, constants
from baton_shim.base.examine import is_a, made_in_notebook, of_type
from baton_shim.base.local_modules import is_own_module

# Enough for the object graphs of models.
MOST_OBJECTS = 50_000
# Nested containers hold data, and examining them takes a fraction of the time that sending them takes.
CONTAINERS_PER_OBJECT = 10
# Only the first elements of a long container are examined, because long containers hold data.
LONG_CONTAINER = 10_000
# The containers in a container with more of them are examined last, because they are rows of data.
FEW_CONTAINERS = 100
# Types are recognised by identity, because a metaclass may have a `__hash__` and `__eq__` of its own.
SEQUENCES = frozenset(map(id, (list, tuple, set, frozenset)))
CONTAINERS = SEQUENCES | {id(dict)}
# Instances of these refer to nothing.
PLAIN = frozenset(map(id, (str, int, float, bool, bytes, type(None))))
# Attribute look-ups on these reach their referent, or raise an error if it is gone.
WEAK = frozenset(map(id, weakref.ProxyTypes))
# The garbage collector does not see what these hold, but a time zone may be an object of the notebook.
WITH_ZONE = frozenset(map(id, (datetime, time)))
IN_QUERY = re.compile(r"(?<!\w)@([^\W\d]\w*)")
EVALUATE = frozenset({"eval", "exec"})
# Recognised by identity, under any name or in a list.
EVALUATORS = frozenset(map(id, (eval, exec)))
SHOWERS = frozenset(map(id, (globals, locals)))
RUNNING = frozenset(map(id, (GeneratorType, CoroutineType, AsyncGeneratorType)))
CLOSED = (ModuleType, BuiltinFunctionType, CodeType, FrameType, TracebackType, AbstractEventLoop, Context)


class Uses(frozenset[str]):
    """Names that an object in the other kernel may use. Its stand-in here holds them."""


@dataclass
class Reached:
    """What following some values has found."""

    names: set[str] = field(default_factory=set)
    """Names that the functions use."""
    binds: set[str] = field(default_factory=set)
    """Names that one of the functions binds in the notebook."""
    files: set[str] = field(default_factory=set)
    """File names of the functions' code."""
    dynamic: bool = False
    """One of the functions evaluates text."""
    everything: bool = False
    """One of the functions reads or shows the namespace itself, or one of the names refers to it."""


def reach(names: Iterable[str], namespace: Mapping[str, Any], objects: Iterable[object] = ()) -> Reached:
    """All names that the values of `names`, and these objects, may use when they are called.

    `names` themselves are not included.
    """
    reached = Reached()
    taken = set(names)
    waiting, rows = deque((*(namespace[name] for name in taken), *objects)), deque[Any]()
    seen, left, is_rest = never_followed(namespace), MOST_OBJECTS * CONTAINERS_PER_OBJECT, False
    while waiting or rows:
        if left <= 0:
            if is_rest:
                break
            # The rest may hold any function and class of the notebook.
            left, is_rest = MOST_OBJECTS * CONTAINERS_PER_OBJECT, True
            rows.clear()
            waiting = deque(filter(is_code, tuple(namespace.values())))
            continue
        value = (waiting or rows).popleft()
        if id(value) in seen or id(type(value)) in WEAK or not (gc.is_tracked(value) or holds_untracked(value)):
            continue
        seen[id(value)] = value
        left -= 1
        if id(type(value)) in CONTAINERS and len(value) <= LONG_CONTAINER:  # the most frequent case
            parts = [part for part in gc.get_referents(value) if id(type(part)) not in PLAIN and id(part) not in seen]
            if len(parts) > FEW_CONTAINERS:
                rows.extend(part for part in parts if id(type(part)) in CONTAINERS)
                parts = [part for part in parts if id(type(part)) not in CONTAINERS]
            waiting.extend(parts)
            continue
        left -= CONTAINERS_PER_OBJECT - 1
        reached.dynamic |= id(value) in EVALUATORS
        reached.everything |= id(value) in SHOWERS
        used: frozenset[str] = frozenset()
        if type(value) is FunctionType and value.__globals__ is namespace:
            used = names_of(value.__code__) | names_annotating(value)
            reached.binds |= code_names(value.__code__).stores
            reached.files.add(value.__code__.co_filename)
        elif type(value) is Uses:
            used = value
        elif is_a(value, type) and made_in_notebook(value):
            used = names_annotating(value)
        if used:
            reached.dynamic |= not EVALUATE.isdisjoint(used)
            reached.everything |= "globals" in used
            new = used - taken
            taken |= new
            reached.names |= new
            waiting.extend(namespace[name] for name in new if name in namespace)
        if type(value) is TracebackType:
            reached.files.update(frame.f_code.co_filename for frame, _ in walk_tb(value))
        waiting.extend(held(value))
    reached.everything |= any(namespace.get(name) is namespace for name in taken)
    return reached


def used_by(live: Iterable[object], namespace: Mapping[str, Any]) -> set[str]:
    """The names that these objects of this kernel may use when they continue: generators, threads, frames, …

    The values of those names are not followed further.
    """
    names: set[str] = set()
    waiting = deque(live)
    seen = never_followed(namespace)
    while waiting and len(seen) < MOST_OBJECTS:
        value = waiting.popleft()
        if id(value) in seen or id(type(value)) in WEAK or not (gc.is_tracked(value) or holds_untracked(value)):
            continue
        seen[id(value)] = value
        if type(value) is FunctionType:
            if value.__globals__ is namespace:
                names |= names_of(value.__code__)
        elif type(value) is FrameType:
            if value.f_globals is namespace:
                names |= names_of(value.f_code)
                waiting.extend(value.f_locals.values())
        elif id(type(value)) in RUNNING:
            frame = frame_of(value)
            if frame is not None and frame.f_globals is namespace:
                names |= names_of(frame.f_code)
            waiting.extend(gc.get_referents(value))
        waiting.extend(held(value))
    return names


def never_followed(namespace: Mapping[str, Any]) -> dict[int, object]:
    """The beginning of a record of objects by their identities.

    Python puts its builtins into the variables of every module and script, among them `eval`. The record keeps its
    objects alive, because an object that exists only during the search would leave its identity to another one.
    """
    return {id(one): one for one in (namespace, vars(builtins))}


def frame_of(running: object) -> FrameType | None:
    """The frame of a generator or coroutine; None if it has finished."""
    frames = (getattr(running, name, None) for name in ("gi_frame", "cr_frame", "ag_frame"))
    return next(filter(None, frames), None)


@lru_cache(maxsize=4096)
def names_of(code: CodeType) -> frozenset[str]:
    used = code_names(code)
    return (used.loads | used.deletes).union(*map(names_in_query, constants(code)))


def own_module(code: object) -> str | None:
    """The student's own module to which a function, class or module belongs."""
    if type(code) in (FunctionType, ModuleType):
        values = code.__globals__ if type(code) is FunctionType else vars(code)
        name = values.get("__name__")
    elif is_a(code, type):
        name, values = of_type(code, "__module__"), None  # type: ignore[arg-type]
    else:
        return None
    if type(name) is not str or not is_own_module(name):
        return None
    return name if values is None or vars(sys.modules[name]) is values else None


def own_modules(names: Iterable[str]) -> tuple[ModuleType, ...]:
    """The loaded modules among these names that are the student's own."""
    return tuple(sys.modules[name] for name in sorted(names) if is_own_module(name))


def package_of(function: FunctionType) -> str:
    """The package of its module, from which its relative imports start."""
    package = getattr(function.__globals__.get("__spec__"), "parent", "")
    return package if type(package) is str else ""


def code_of(code: object) -> Iterator[FunctionType]:
    """A function with those that it wraps; the methods of a class and of its bases."""
    waiting = [code]
    seen = set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if type(one) is FunctionType:
            yield one
            waiting += [part for cell in one.__closure__ or () for part in gc.get_referents(cell)]
        elif is_a(one, type) and (made_in_notebook(one) or own_module(one) is not None):  # type: ignore[arg-type]
            waiting += [*of_type(one, "__dict__").values(), *of_type(one, "__bases__")]  # type: ignore[arg-type]
        elif is_a(one, staticmethod, classmethod, property):
            waiting += gc.get_referents(one)


def owns_globals(function: FunctionType) -> bool:
    """Whether its global variables belong to no imported module, as those of a script under `%run`."""
    values = function.__globals__
    name = values.get("__name__")
    return type(name) is not str or getattr(sys.modules.get(name), "__dict__", None) is not values


def globals_named(function: FunctionType) -> frozenset[str]:
    """The global variables that it uses; all of them if it evaluates text or reads the dictionary itself."""
    values, names = function.__globals__, names_of(function.__code__)
    if not (EVALUATE | {"globals"}).isdisjoint(names):
        names = names.union(values)
    return code_names(function.__code__).stores.union(name for name in names if name in values) - {"__builtins__"}


def names_in_query(constant: object) -> Iterable[str]:
    """The variables that a text names as `@name`, which pandas looks up in its caller."""
    return IN_QUERY.findall(constant) if isinstance(constant, str) else ()


def is_code(value: object) -> bool:
    """Whether it is a function, or a class of the notebook."""
    return type(value) is FunctionType or (is_a(value, type) and made_in_notebook(value))  # type: ignore[arg-type]


def holds_untracked(value: object) -> bool:
    """Whether it may refer to other objects although the garbage collector does not track it."""
    return id(type(value)) in WITH_ZONE or is_array_of_objects(value)


def is_array_of_objects(value: object) -> bool:
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    if not isinstance(array, type) or not is_a(value, array):
        return False
    dtype = array.dtype.__get__(value)  # type: ignore[attr-defined]
    return bool(dtype.hasobject) and dtype.kind in "OV"  # texts of `StringDType` count as objects, too


def held(value: object) -> Iterator[object]:
    """What a value refers to, as far as it may lead to functions and classes of the notebook."""
    if type(value) is FunctionType:
        own = globals_named(value) if owns_globals(value) or own_module(value) is not None else ()
        return chain(
            (cell for cell in value.__closure__ or ()),
            value.__defaults__ or (),
            (value.__kwdefaults__ or {}).values(),
            vars(value).values(),
            (value.__globals__[name] for name in own if name in value.__globals__),
        )
    if is_a(value, type):
        kind: Any = value
        if made_in_notebook(kind):
            return chain(of_type(kind, "__dict__").values(), of_type(kind, "__bases__"), (type(kind),))
        return code_of(kind)
    if type(value) is ModuleType and own_module(value) is not None:
        return iter(tuple(vars(value).values()))
    if id(type(value)) in RUNNING or is_a(value, *CLOSED):
        return iter(())
    if is_a(value, SingletonConfigurable) and not made_in_notebook(type(value)):
        return iter(())  # kernel, shell and application: every widget refers to them, and they refer to everything
    if is_a(value, datetime, time):
        zone = (datetime if is_a(value, datetime) else time).tzinfo
        return chain((zone.__get__(value),), gc.get_referents(value))
    if is_a(value, weakref.ref):
        return chain((weakref.ref.__call__(value),), gc.get_referents(value))  # type: ignore[arg-type]
    if is_array_of_objects(value):
        array = sys.modules["numpy"].ndarray.view(value, sys.modules["numpy"].ndarray)
        parts = array.flat[: array.size if array.size <= LONG_CONTAINER else LONG_CONTAINER // 10].tolist()
        return iter([part for part in parts if id(type(part)) not in PLAIN])
    # Exact types only: a subclass may define its own iteration.
    if id(type(value)) in SEQUENCES and len(value) > LONG_CONTAINER:  # type: ignore[arg-type]
        return islice(iter(value), LONG_CONTAINER // 10)  # type: ignore[call-overload]
    if type(value) is dict and len(value) > LONG_CONTAINER:
        return islice(value.values(), LONG_CONTAINER // 10)
    return iter(gc.get_referents(value))
