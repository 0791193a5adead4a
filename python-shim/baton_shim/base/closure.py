"""Follows values to the notebook's functions and classes that they hold, and follows those to the names that they use.

This finds what the cell can call through a value that it names: methods of an instance's class, callbacks in a list, a
decorated function behind its wrapper.

**Invariant:** references are read from the garbage collector; no attribute look-up runs the student's code.
"""

from __future__ import annotations

import gc
import re
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

# Enough for the object graphs of models. Beyond it, a missed function is a NameError rather than a delay.
MOST_OBJECTS = 50_000
# Only the first elements of a long container are examined, because long containers hold data.
LONG_CONTAINER = 10_000
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
    waiting = deque((*(namespace[name] for name in taken), *objects))
    seen = {id(namespace)}
    while waiting and len(seen) < MOST_OBJECTS:
        value = waiting.popleft()
        if id(value) in seen or id(type(value)) in WEAK or not (gc.is_tracked(value) or id(type(value)) in WITH_ZONE):
            continue
        seen.add(id(value))
        if id(type(value)) in CONTAINERS and len(value) <= LONG_CONTAINER:  # the most frequent case
            waiting.extend(
                part for part in gc.get_referents(value) if id(type(part)) not in PLAIN and id(part) not in seen
            )
            continue
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
    seen = {id(namespace)}
    while waiting and len(seen) < MOST_OBJECTS:
        value = waiting.popleft()
        if id(value) in seen or id(type(value)) in WEAK or not gc.is_tracked(value):
            continue
        seen.add(id(value))
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


def frame_of(running: object) -> FrameType | None:
    """The frame of a generator or coroutine; None if it has finished."""
    frames = (getattr(running, name, None) for name in ("gi_frame", "cr_frame", "ag_frame"))
    return next(filter(None, frames), None)


@lru_cache(maxsize=4096)
def names_of(code: CodeType) -> frozenset[str]:
    used = code_names(code)
    return (used.loads | used.deletes).union(*map(names_in_query, constants(code)))


def names_in_query(constant: object) -> Iterable[str]:
    """The variables that a text names as `@name`, which pandas looks up in its caller."""
    return IN_QUERY.findall(constant) if isinstance(constant, str) else ()


def held(value: object) -> Iterator[object]:
    """What a value refers to, as far as it may lead to functions and classes of the notebook."""
    if type(value) is FunctionType:
        return chain(
            (cell for cell in value.__closure__ or ()),
            value.__defaults__ or (),
            (value.__kwdefaults__ or {}).values(),
            vars(value).values(),
        )
    if is_a(value, type):
        kind: Any = value
        if made_in_notebook(kind):
            return chain(of_type(kind, "__dict__").values(), of_type(kind, "__bases__"), (type(kind),))
        return iter(())
    if id(type(value)) in RUNNING or is_a(value, *CLOSED):
        return iter(())
    if is_a(value, SingletonConfigurable) and not made_in_notebook(type(value)):
        return iter(())  # kernel, shell and application: every widget refers to them, and they refer to everything
    if is_a(value, datetime, time):
        zone = (datetime if is_a(value, datetime) else time).tzinfo
        return chain((zone.__get__(value),), gc.get_referents(value))
    # Exact types only: a subclass may define its own iteration.
    if id(type(value)) in SEQUENCES and len(value) > LONG_CONTAINER:  # type: ignore[arg-type]
        return islice(iter(value), LONG_CONTAINER // 10)  # type: ignore[call-overload]
    if type(value) is dict and len(value) > LONG_CONTAINER:
        return islice(value.values(), LONG_CONTAINER // 10)
    return iter(gc.get_referents(value))
