"""Follows values to the functions and classes of the notebook that they hold, and these to the names that they use.

Methods of an instance's class, callbacks in a list, a decorated function behind its wrapper: whatever the cell can
call through a value that it names.

**Invariant:** looks at objects by the garbage collector's eyes only; no attribute look-up runs the student's code.
"""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, time
from itertools import chain, islice
from traceback import walk_tb
from types import (
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

from baton_shim.bytecode import code_names

# Enough for the object graphs of models; beyond it a missed function is a NameError, not a wait.
MOST_OBJECTS = 50_000
# Of a long container only the first elements are looked at: what is long holds data.
LONG_CONTAINER = 10_000
# They answer for what they refer to, or, where that is gone, with an error.
WEAK = weakref.ProxyTypes
# What they hold is no business of the collector's, but a time zone may be an object of the notebook.
WITH_ZONE = (datetime, time)
EVALUATE = frozenset({"eval", "exec"})
# Under whatever name, or in a list.
EVALUATORS = frozenset(map(id, (eval, exec)))
SHOWERS = frozenset(map(id, (globals, locals)))
CLOSED = (ModuleType, BuiltinFunctionType, CodeType, FrameType, TracebackType, GeneratorType, CoroutineType)


@dataclass
class Reached:
    names: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    dynamic: bool = False
    """A function among them evaluates text."""
    everything: bool = False
    """A function among them looks into the namespace itself, or shows it; or one of the names is of it."""


def reach(names: Iterable[str], namespace: Mapping[str, Any], beside: Iterable[object] = ()) -> Reached:
    """All names that the values of `names`, and what is `beside` them, may use when they are called.

    `names` themselves are not among them.
    """
    reached = Reached()
    taken = set(names)
    waiting = deque((*(namespace[name] for name in taken), *beside))
    seen = {id(namespace)}
    while waiting and len(seen) < MOST_OBJECTS:
        value = waiting.popleft()
        if id(value) in seen or type(value) in WEAK or not (gc.is_tracked(value) or type(value) in WITH_ZONE):
            continue
        seen.add(id(value))
        reached.dynamic |= id(value) in EVALUATORS
        reached.everything |= id(value) in SHOWERS
        if isinstance(value, FunctionType) and value.__globals__ is namespace:
            used = code_names(value.__code__)
            reached.files.add(value.__code__.co_filename)
            reached.dynamic |= not EVALUATE.isdisjoint(used.loads)
            reached.everything |= "globals" in used.loads
            new = (used.loads | used.deletes) - taken
            taken |= new
            reached.names |= new
            waiting.extend(namespace[name] for name in new if name in namespace)
        elif isinstance(value, TracebackType):
            reached.files.update(frame.f_code.co_filename for frame, _ in walk_tb(value))
        waiting.extend(held(value))
    reached.everything |= any(namespace.get(name) is namespace for name in taken)
    return reached


def held(value: object) -> Iterator[object]:
    if isinstance(value, FunctionType):
        return chain(
            (cell for cell in value.__closure__ or ()),
            value.__defaults__ or (),
            (value.__kwdefaults__ or {}).values(),
            vars(value).values(),
        )
    if isinstance(value, type):
        if value.__module__ == "__main__":
            return chain(type.__getattribute__(value, "__dict__").values(), value.__bases__, (type(value),))
        return iter(())
    if isinstance(value, CLOSED):
        return iter(())
    if type(value) in WITH_ZONE:
        return iter((value.tzinfo,))  # type: ignore[attr-defined]
    # Exact types: a subclass may iterate in its own way.
    if type(value) in (list, tuple, set, frozenset) and len(value) > LONG_CONTAINER:  # type: ignore[arg-type]
        return islice(iter(value), LONG_CONTAINER // 10)  # type: ignore[call-overload]
    if type(value) is dict and len(value) > LONG_CONTAINER:
        return islice(value.values(), LONG_CONTAINER // 10)
    return iter(gc.get_referents(value))
