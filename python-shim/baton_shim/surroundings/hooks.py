"""What the notebook attached to IPython and libraries: magics, formatters, event callbacks, transformers, accessors,
tree nodes, handlers of signals and of the garbage collector, import hooks, attributes of classes and modules, the
context of decimal.

They are objects of the notebook like any other, so they are sent in the table's message itself, not as bytes. What a
library attached is not sent, because each process has its own.

**Invariant:** if neither side has such an object, nothing is sent, because a message with objects takes longer. Event
callbacks run only in the notebook kernel, where each cell begins and ends once.
"""

from __future__ import annotations

import collections
import gc
import importlib
import signal
import sys
import types
from collections.abc import Iterable, Iterator
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any

from baton_shim.base.originals import of_notebook
from baton_shim.base.undoing import refill
from baton_shim.surroundings.formats import PRINTERS, formats, give_formats
from baton_shim.surroundings.ipython import shell
from baton_shim.surroundings.jax_settings import JAX
from baton_shim.surroundings.patches import Patches
from baton_shim.surroundings.registered import REGISTERED

if TYPE_CHECKING:
    from baton_shim.base.undoing import OnUndo

Entries = list[tuple[Any, Any]]
Attached = dict[str, Entries]
"""Keys and objects, by place. In lists, the key is None."""
_MISSING = object()
NODES = "nodes"
ACCESSORS = "accessors"
PATCHES = "patches"
DECIMAL = "decimal"
SIGNALS = "signals"
NUMPY = "numpy.seterrcall"
CALLS = "calls"
FORMATS = "formats"
WITH_ACCESSORS = {"pandas": ("DataFrame", "Series", "Index"), "polars": ("DataFrame", "LazyFrame", "Series", "Expr")}


class Hooks:
    """One end's view of what is attached at both ends."""

    name, title = "hooks", "What the notebook attached to IPython and libraries"

    def __init__(self, patches: Patches) -> None:
        self._known: Attached = {}
        self._next: Attached = {}
        self._sieves: dict[str, Sieve] = collections.defaultdict(Sieve)
        self._patches = patches

    def restart(self) -> None:
        """Keeps what the other end sent: it belongs to the notebook, even if that end is gone."""

    def look(self) -> Attached | None:
        """Everything that can be sent."""
        self._next = self._attached()
        return {**{place: [] for place in self._known}, **self._next} or None

    def commit(self, undo: OnUndo) -> None:
        undo(partial(setattr, self, "_known", self._known))
        self._known = self._next

    def apply(self, found: Attached, undo: OnUndo) -> None:
        from baton_shim.state import StandIn

        # After a failure, only the other end may have these.
        undo(partial(setattr, self, "_known", {**{place: [] for place in found}, **self._known}))
        for place, entries in found.items():
            known = self._known.pop(place, [])
            if place != PATCHES:  # a stand-in in PATCHES reports the reason itself
                entries = [(key, one) for key, one in entries if type(one) is not StandIn]
            if place in tables():
                PRINTERS.note(one for _, one in entries)
                replace_entries(place, dict(known), dict(entries), undo)
            elif place in lists():
                replace(lists()[place], [one for _, one in known], [one for _, one in entries], undo)
            else:
                self._give(place, known, entries, undo)
            if entries:
                self._known[place] = entries

    def _give(self, place: str, known: Entries, entries: Entries, undo: OnUndo) -> None:
        if place == NODES:
            for _, node in entries:
                JAX.register(*node)
        elif place == CALLS:
            REGISTERED.apply(entries, undo)
        elif place == FORMATS:
            give_formats(dict(known), dict(entries), undo)
        elif place == PATCHES:
            self._patches.apply(known, entries, undo)
        elif place == ACCESSORS:
            give_accessors(dict(known), dict(entries), undo)
        elif place == DECIMAL:
            decimal: Any = importlib.import_module("decimal")
            for _, context in entries:
                undo(partial(decimal.setcontext, decimal.getcontext()))
                decimal.setcontext(context)
        elif place == NUMPY:
            numpy: Any = importlib.import_module("numpy")
            undo(partial(numpy.seterrcall, numpy.geterrcall()))
            numpy.seterrcall(entries[0][1] if entries else None)
        elif place == SIGNALS:
            for number, one in {**{number: signal.SIG_DFL for number, _ in known}, **dict(entries)}.items():
                undo(partial(signal.signal, number, handler_of(number)))
                signal.signal(number, one)

    def _attached(self) -> Attached:
        found = attached()
        for place, table in tables().items():
            if entries := self._sieves[place].of_notebook(place, table):
                found[place] = entries
        if patches := self._patches.look():
            found[PATCHES] = patches
        if "decimal" in sys.modules and (DECIMAL in self._known or not is_usual_context()):
            found[DECIMAL] = [(None, sys.modules["decimal"].getcontext())]
        return found


class Sieve:
    """Finds the notebook's entries in a table. Large tables (over a hundred entries) seldom change between cells."""

    def __init__(self) -> None:
        self._seen: tuple[list[Any], list[Any]] = [], []
        self._found: list[tuple[Any, Any]] = []

    def of_notebook(self, place: str, table: dict[Any, Any]) -> list[tuple[Any, Any]]:
        keys, values = self._seen
        if len(table) != len(keys) or not (all(map(is_, table, keys)) and all(map(is_, table.values(), values))):
            self._seen = [*table], [*table.values()]
            self._found = [
                (key, one)
                for key, one in table.items()
                if of_notebook(one) or is_made_here(one) or PRINTERS.is_chosen(place, key, one)
            ]
        return self._found


def tables() -> dict[str, dict[Any, Any]]:
    magics: dict[str, dict[Any, Any]] = shell().magics_manager.magics
    return {**magics, **PRINTERS.tables()}


def lists() -> dict[str, list[Any]]:
    this = shell()
    transformers = ("ast_transformers", "input_transformers_cleanup", "input_transformers_post")
    others = {"gc": gc.callbacks, "meta_path": sys.meta_path}
    return {**others, **this.events.callbacks, **{name: getattr(this, name) for name in transformers}}


def attached() -> Attached:
    found: Attached = {NODES: [(None, node) for node in JAX.nodes], ACCESSORS: list(accessors())}
    found[CALLS], found[FORMATS] = list(REGISTERED.calls.items()), list(formats())
    called = sys.modules["numpy"].geterrcall() if "numpy" in sys.modules else None
    if called is not None and of_notebook(called):
        found[NUMPY] = [(None, called)]
    handlers = ((number, handler_of(number)) for number in range(1, signal.NSIG))
    found[SIGNALS] = [(number, one) for number, one in handlers if callable(one) and of_notebook(one)]
    for place, entries in lists().items():
        found[place] = [(None, one) for one in entries if of_notebook(one)]
    return {place: entries for place, entries in found.items() if entries}


# Without creating an enum for each handler.
handler_of = importlib.import_module("_signal").getsignal


def is_usual_context() -> bool:
    """Whether it is as Python created it, and no variable refers to it."""
    decimal: Any = sys.modules["decimal"]
    context = decimal.getcontext()
    held = any(value is context for value in tuple(shell().user_ns.values()))
    return not held and context.__reduce__() == decimal.Context().__reduce__()


def accessors() -> Iterator[tuple[tuple[str, str, str], Any]]:
    """Accessors such as `frame.name`, by library, class and name."""
    for module, kinds in WITH_ACCESSORS.items():
        for kind in kinds if module in sys.modules else ():
            found = getattr(sys.modules[module], kind, None)  # None while the library is being imported
            for name in sorted(getattr(found, "_accessors", ())):
                one = vars(found).get(name)
                if any(of_notebook(part) for part in getattr(one, "__dict__", {}).values()):
                    yield (module, kind, name), one


def give_accessors(before: dict[tuple[str, str, str], Any], now: dict[tuple[str, str, str], Any], undo: OnUndo) -> None:
    for place in before.keys() - now.keys():
        set_accessor(place, _MISSING, undo)
    for place, one in now.items():
        set_accessor(place, one, undo)


def set_accessor(place: tuple[str, str, str], one: Any, undo: OnUndo) -> None:
    module, kind, name = place
    owner: Any = getattr(importlib.import_module(module), kind)
    undo(partial(set_accessor, place, vars(owner).get(name, _MISSING), lambda action: None))
    if one is _MISSING:
        owner._accessors.discard(name)
        delattr(owner, name)
    else:
        owner._accessors.add(name)
        setattr(owner, name, one)


def is_made_here(one: Any) -> bool:
    """Whether it is a formatter that a call of the notebook created, such as `sympy.init_printing()`."""
    return isinstance(one, types.FunctionType) and str(one.__module__).startswith("sympy.") and bool(one.__closure__)


def objects(found: Attached | None) -> list[object]:
    """Objects that code may run without naming them."""
    return [one for entries in (found or {}).values() for _, one in entries]


def replace_entries(place: str, before: dict[Any, Any], now: dict[Any, Any], undo: OnUndo) -> None:
    table = tables()[place]
    undo(partial(refill, table, dict(table)))
    for key, one in before.items():
        if key not in now and table.get(key) is one:
            del table[key]
            if (usual := PRINTERS.usual(place, key)) is not None:
                table[key] = usual
    table.update(now)


def replace(entries: list[Any], before: Iterable[Any], now: list[Any], undo: OnUndo) -> None:
    """Puts the notebook's entries after those of libraries, in their own order."""
    theirs = set(map(id, (*before, *now)))
    present = [one for one in entries if id(one) in theirs]
    if list(map(id, present)) != list(map(id, now)):
        undo(partial(entries.__setitem__, slice(None), list(entries)))
        entries[:] = [one for one in entries if id(one) not in theirs] + now


__all__ = ["Attached", "Hooks", "objects"]
