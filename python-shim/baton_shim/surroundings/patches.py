"""What the notebook set on classes, modules and objects of libraries, such as `pandas.DataFrame.total = total`.

Such changes are not reported anywhere, so only places that the cells' code names are examined: attributes that a cell
assigns, dictionaries in which it sets items, and named classes, for anything in them that is the notebook's. The
notebook's end reads the cells and sends the places. `sympy.init_printing` sets its own functions, on one class of
sympy. Two kinds of registration are handled as well: classes of the notebook that are registered with an abstract class
of a library, and functions of the notebook that are registered with a generic function of a library.

**Invariant:** only looks into dictionaries; the only attributes that are looked up are those that a cell assigns.
"""

from __future__ import annotations

import abc
import gc
import re
import sys
import types
import weakref
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from baton_shim.base import late, originals
from baton_shim.base.originals import ASSIGNED, BEFORE, Place
from baton_shim.base.undoing import refill
from baton_shim.surroundings.imports import IMPORTS, names_bound

if TYPE_CHECKING:
    from baton_shim.base.undoing import OnUndo

_ASSIGNED = r"\s*(?:\*\*|//|<<|>>|[-+*/%@&|^])?=(?!=)"
PATH = re.compile(rf"(?<![\w.'\"])([^\W\d]\w*(?:\.[^\W\d]\w*)*)(?:({_ASSIGNED})|(\s*\[[^\n]{{1,200}}?\]{_ASSIGNED}))?")
SETS = re.compile(r"\.\w+\s*=(?!=)")
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: new attributes are allowed
_MISSING = object()
_WRAPPERS = frozenset((classmethod, staticmethod, property))
_OWN = frozenset((types.FunctionType, type))
_OTHERS = ("__main__", "builtins", "IPython", "ipykernel")  # changes in IPython are settings, handled elsewhere
_OF_THE_KERNEL = frozenset(
    "stdin stdout stderr displayhook excepthook path argv modules meta_path path_hooks executable prefix".split()
)

_REGISTERED = "(registered)"
_ITEMS = "(items)"
_FILL = frozenset(("update", "setdefault", "pop"))
_MOST_ITEMS = 256
_ATOMS = frozenset((int, float, complex, bool, str, bytes, type(None)))
_SYMPY = "sympy.core._print_helpers", "Printable"

Owner = tuple[str, str, str]
"""Module, class or object in it, and attribute; either of the last two may be empty."""
Key = tuple[str, str, str]


class Patches:
    """One end's view of the patches of both ends."""

    def __init__(self) -> None:
        self.owners: dict[Owner, None] = {}
        self._cells = 0  # the number of cells that have been read
        self._before: dict[Key, Any] = {}
        self._waiting: dict[Key, Any] = {}

    def read(self, text: str, namespace: Mapping[str, Any]) -> None:
        """Records the places that this code names."""
        IMPORTS.read(text)
        self._note(owners(text, namespace))

    def expect(self, text: str, namespace: Mapping[str, Any]) -> None:
        """Records the places that this code is about to set, or to import and set, and the present values there.

        Afterwards, the code's names may mean nothing: a `del` or `%reset` may have deleted them.
        """
        if SETS.search(text) is None:
            return
        imported: dict[str, Any] = {}
        for name, module, part in names_bound(text):
            if module in sys.modules:
                imported[name] = owner_of(module, part) if part else sys.modules[module]
            else:
                late.when_imported(module, partial(self.expect, text, namespace))
        for key in owners(text, ChainMap(imported, namespace)):  # type: ignore[arg-type]
            self._note([key])
            owner = owner_of(*key[:2])
            if key[2] and isinstance(owner, (types.ModuleType, type)):
                self._keep(key, value_of(owner, key[2]))

    def _note(self, found: Iterable[Owner]) -> None:
        for owner in found:
            self.owners[owner] = None
            if owner[2]:
                ASSIGNED.add(place_of(owner))

    def _keep(self, key: Key, one: Any) -> None:
        if one is not _MISSING and is_own(key, one):
            BEFORE.setdefault(place_of(key), one)

    def read_new(self, cells: list[str], namespace: Mapping[str, Any]) -> None:
        """In the notebook. The last cell is read again next time, as it may not have imported what it names yet."""
        for text in cells[self._cells :]:
            self.read(text, namespace)
        self._cells = max(0, len(cells) - 1)

    def named(self) -> str:
        """The places that the notebook's end has read, as one text.

        Containers in a message with objects get numbers, and a message in which something has a number has objects.
        """
        return "\n".join(map("\0".join, self.owners))

    def take_places(self, named: str) -> None:
        """In a session: takes the places that the notebook's end has read."""
        self.owners = {}
        for line in named.splitlines():
            module, kind, attribute = line.split("\0")
            self._note([(module, kind, attribute)])

    def look(self) -> list[tuple[Key, Any]]:
        # An attribute may be found twice: once as an assigned one, and once in a named class.
        found = dict((*printing(), *(entry for owner in self.owners for entry in patched(owner))))
        return [*self._waiting.items(), *((key, one) for key, one in found.items() if self._is_change(key, one))]

    def _is_change(self, key: Key, one: Any) -> bool:
        """Whether it is a patch: a library's own functions in their own place are not, unless one was restored here."""
        return not is_own(key, one) or (key in self._before and one is not self._before[key])

    def apply(self, before: Iterable[tuple[Key, Any]], now: list[tuple[Key, Any]], undo: OnUndo) -> None:
        known, staying = dict(before), {key for key, _ in now}
        undo(partial(self._restore, dict(self._before), dict(self._waiting)))
        self._note(key for key in staying if key[2] != _REGISTERED)
        for key, one in [*((key, self._put_back(key)) for key in known.keys() - staying), *now]:
            owner = owner_of(key[0], key[1])
            if owner is None:
                self._wait(key, one)
                continue
            if key[2] == _REGISTERED:
                for arguments in one if one is not _MISSING else ():
                    register(owner, arguments, undo)
                continue
            if key[2] == _ITEMS:
                undo(partial(refill, owner, dict(owner)))
                replace_entries(owner, known.get(key, ()), one if one is not _MISSING else ())
                continue
            present = value_of(owner, key[2])
            if key in staying - known.keys():
                self._before.setdefault(key, present)
                self._keep(key, present)
            undo(partial(set_value, owner, key[2], present))
            set_value(owner, key[2], one)

    def _restore(self, before: dict[Key, Any], waiting: dict[Key, Any]) -> None:
        self._before, self._waiting = before, waiting

    def _put_back(self, key: Key) -> Any:
        return self._before.pop(key, BEFORE.get(place_of(key), _MISSING))

    def _wait(self, key: Key, one: Any) -> None:
        """Delays the patch until something here imports the library."""
        if one is _MISSING:
            self._waiting.pop(key, None)
            return
        if key not in self._waiting and key[0] not in sys.modules:
            late.when_imported(key[0], lambda: self._arrived(key))
        self._waiting[key] = one

    def _arrived(self, key: Key) -> None:
        if key in self._waiting:
            self.apply((), [(key, self._waiting.pop(key))], lambda action: None)


def owners(text: str, namespace: Mapping[str, Any]) -> Iterator[Owner]:
    from baton_shim.state.kinds.singletons import may_be_singleton, place_of

    for match in PATH.finditer(text):
        first, *parts = match[1].split(".")
        found = namespace.get(first)
        if type(found) in weakref.ProxyTypes:  # proxies answer for their targets
            continue
        if isinstance(found, types.ModuleType):
            yield from named(found, parts, match)
        elif isinstance(found, type):
            yield from of_class(found, parts[-1] if match[2] and len(parts) == 1 else "")
        elif isinstance(found, types.FunctionType):
            if is_generic(found) and parts == ["register"]:
                yield found.__module__, found.__qualname__, _REGISTERED
        elif may_be_singleton(type(found)) and (place := place_of(found)) is not None and place[0] not in _OTHERS:
            yield from of_object(*place, found, parts, match)


def named(found: Any, parts: list[str], match: re.Match[str]) -> Iterator[Owner]:
    """Owners that are named by a path which begins with a module."""
    for number, part in enumerate(parts):
        if match[2] is not None and number == len(parts) - 1 and found.__name__ != "__main__":
            yield found.__name__, "", part
        module, found = found.__name__, vars(found).get(part)
        if isinstance(found, type):
            yield from of_class(found, parts[-1] if match[2] and number == len(parts) - 2 else "")
        elif isinstance(found, types.FunctionType):
            if is_generic(found) and parts[number + 1 :] == ["register"]:
                yield module, part, _REGISTERED
        elif not isinstance(found, types.ModuleType):
            if module not in ("sys", "__main__") and found is not None:
                yield from of_object(module, part, found, parts[number + 1 :], match)
        else:
            continue
        return


def of_class(found: Any, assigned: str) -> Iterator[Owner]:
    if found.__module__ and str(found.__module__).partition(".")[0] not in _OTHERS and found.__flags__ & _HEAP_TYPE:
        yield found.__module__, found.__qualname__, ""
        if assigned:
            yield found.__module__, found.__qualname__, assigned


def of_object(module: str, name: str, found: Any, parts: list[str], match: re.Match[str]) -> Iterator[Owner]:
    """For an object that exists once in a library: attributes that are assigned, or items that are set."""
    if match[3] is not None or (parts and parts[-1] in _FILL):
        parts = parts[:-1] if match[3] is None else parts
        found = owner_of(module, ".".join((name, *parts)))
        if isinstance(found, dict) and type(found).__setitem__ is dict.__setitem__:
            yield module, ".".join((name, *parts)), _ITEMS
    elif match[2] is not None and parts:
        yield module, ".".join((name, *parts[:-1])), parts[-1]


def place_of(key: Key) -> Place:
    return key[0], ".".join(filter(None, key[1:]))


def is_own(key: Key, one: Any) -> bool:
    """Whether it is a library's function or class in its own place."""
    return callable(one) and originals.names_of(one) == place_of(key) and not originals.is_of_notebook(one)


def is_generic(found: types.FunctionType) -> bool:
    """Whether `functools.singledispatch` created it."""
    return found.__module__ != "__main__" and {"register", "registry", "dispatch"} <= vars(found).keys()


def owner_of(module: str, qualified_name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in filter(None, qualified_name.split(".")):
        found = getattr(found, "__dict__", {}).get(part)
    return found


def value_of(owner: Any, attribute: str) -> Any:
    """For a class or module, its own attribute; for an object, or a module with properties, the looked-up one."""
    if isinstance(owner, type) or type(owner) is types.ModuleType:
        return vars(owner).get(attribute, _MISSING)
    return getattr(owner, attribute, _MISSING)


def set_value(owner: Any, attribute: str, one: Any) -> None:
    if one is not _MISSING:
        setattr(owner, attribute, one)
    elif value_of(owner, attribute) is not _MISSING:
        delattr(owner, attribute)


def register(owner: Any, arguments: tuple[Any, ...], undo: OnUndo) -> None:
    """Registers with an abstract class, which drops classes only when they are freed, or with a generic function."""
    if hasattr(owner, "registry"):
        undo(partial(put_back, owner, arguments[0], owner.registry.get(arguments[0])))
    owner.register(*arguments)


def put_back(generic: Any, kind: type, function: Any) -> None:
    """The registry of a generic function is public but read-only."""
    if function is not None:
        generic.register(kind, function)
    else:
        gc.get_referents(generic.registry)[0].pop(kind, None)
        generic._clear_cache()


def patched(owner: Owner) -> Iterator[tuple[Key, Any]]:
    """The assigned attribute; for a class, functions and classes of the notebook, also as methods and properties."""
    module, name, attribute = owner
    found = owner_of(module, name)
    if found is None:
        return
    entries: Iterable[tuple[str, Any]] = ()
    if not attribute:
        entries = [(name, one) for name, one in vars(found).items() if is_of_notebook(one)]
        if isinstance(found, abc.ABCMeta) and (kinds := registered(found)):
            entries.append((_REGISTERED, kinds))
    elif attribute == _REGISTERED:
        entries = [(attribute, tuple(pair for pair in found.registry.items() if any(map(is_of_notebook, pair))))]
    elif attribute == _ITEMS:
        entries = [(attribute, tuple(items_of(found)))]
    elif module != "sys" or attribute not in _OF_THE_KERNEL:
        one = value_of(found, attribute)
        anything = isinstance(found, (type, types.ModuleType)) and one is not _MISSING
        entries = [(attribute, one)] if anything or is_plain(one) or is_made_by_notebook(one) else ()
    yield from (((module, owner[1], name), one) for name, one in entries if not isinstance(one, types.ModuleType))


def items_of(found: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Items of the notebook, and in a small dictionary all plain ones."""
    small = len(found) <= _MOST_ITEMS
    for pair in tuple(dict.items(found)):
        if any(map(is_made_by_notebook, pair)) or (small and all(map(is_plain, pair))):
            yield pair


def replace_entries(owner: dict[Any, Any], before: Iterable[tuple[Any, Any]], now: Iterable[tuple[Any, Any]]) -> None:
    for key in dict(before).keys() - dict(now).keys():
        owner.pop(key, None)
    owner.update(now)


def is_plain(one: Any) -> bool:
    if type(one) in (tuple, list, set, frozenset, dict):
        return all(type(part) in _ATOMS for part in one) and (type(one) is not dict or is_plain(list(one.values())))
    return type(one) in _ATOMS


def is_made_by_notebook(one: Any) -> bool:
    return is_of_notebook(one) or type(one).__module__ == "__main__"


def registered(kind: abc.ABCMeta) -> tuple[tuple[type], ...]:
    found = (known() for known in abc._get_dump(kind)[0])  # type: ignore[attr-defined]
    return tuple((one,) for one in found if one is not None and one.__module__ == "__main__")


def is_of_notebook(one: Any) -> bool:
    if type(one) in _WRAPPERS:
        one = one.fget if type(one) is property else one.__func__
    return type(one) in _OWN and one.__module__ == "__main__"


def printing() -> Iterator[tuple[Key, Any]]:
    """The functions with which sympy shows its objects, if they were chosen."""
    held = vars(owner_of(*_SYMPY) or object)
    for name in ("_repr_latex_", "_repr_png_", "_repr_svg_"):
        one = held.get(name)
        usual = name if name == "_repr_latex_" else "_repr_disabled"
        if getattr(one, "__qualname__", f"Printable.{usual}") != f"Printable.{usual}":
            yield (*_SYMPY, name), one
