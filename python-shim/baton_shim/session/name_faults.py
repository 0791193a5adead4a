"""Finds names that a running cell looks up and was not given: in `eval`, in `exec`, through `__main__`.

Python looks in a namespace and then in its builtins. So the builtins of the session's namespace are a dictionary that
requests missing names from the notebook, and puts them into the namespace. `globals`, `locals`, `vars` and `dir` are
left out of that dictionary: code that looks them up is about to see the namespace itself, so all names must be there.

Functions that were created with such a dictionary look up builtins and globals several times more slowly. So it is used
only for cells that may look up names that appear only in strings.

**Invariant:** there are no requests between cells, nor for a name that the notebook does not have.
"""

from __future__ import annotations

import builtins
import copyreg
import importlib
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType, ModuleType
from typing import Any

from baton_shim.base.bytecode import NO_KEYS, keys_of_call
from baton_shim.state.session_names import SessionNames

SHOW_NAMESPACE = ("globals", "locals", "vars", "dir")
NO_ARGUMENTS = ("globals", "locals")
# Libraries that read the dictionary of `__main__` to find the names in it. Others, such as dataclasses and pydantic,
# read it for each class that is defined.
FIND_NAMES = frozenset({"doctest"})
# Interrupts get through between two attempts.
TRY_SECONDS = 0.1


class NameFaults:
    """The names of the notebook that the running cell has not been given."""

    def __init__(
        self,
        namespace: dict[str, Any],
        names: SessionNames,
        turn: threading.Lock,
        ask: Callable[[list[str]], None],
    ) -> None:
        """`ask` requests names. It is called while `turn` is held: one thread at a time talks to the notebook."""
        self._namespace = namespace
        self._names = names
        self._turn = turn
        self._ask = ask
        self._asking: int | None = None
        self._open = False
        self._builtins = Builtins(self._find)
        mirror_builtins(self._builtins)

    def open(self, dynamic: bool) -> None:
        """The cell begins; a `dynamic` one may look up names that appear only in strings."""
        self._open = True
        if dynamic:
            self.watch_text()

    def watch_text(self) -> None:
        self._builtins.refresh()
        self._namespace["__builtins__"] = self._builtins

    def close(self) -> None:
        """The cell has ended. Requests of its threads are completed first."""
        with self._turn:
            self._open = False
        self._namespace["__builtins__"] = builtins

    def fetch(self, names: Iterable[str]) -> None:
        """Requests those of the names that the notebook has and the cell lacks."""
        wanted = self._names.missing.intersection(names)
        if not (wanted and self._open) or self._asking == threading.get_ident():
            return  # the last condition: an object that is being unpickled looks up a name
        while not self._turn.acquire(timeout=TRY_SECONDS):
            pass
        try:
            wanted &= self._names.missing
            if wanted and self._open:
                self._asking = threading.get_ident()
                self._ask(sorted(wanted))
        finally:
            self._asking = None
            self._turn.release()

    def fetch_all(self) -> None:
        """Requests all names. A stand-in replaces each one that cannot be sent, and says why."""
        self._fetch_or_stand_in(self._names.elsewhere())

    def attribute(self, name: str) -> Any:
        """An attribute of the module `__main__`."""
        try:
            return self._value(name)
        except KeyError:
            raise AttributeError(f"module '__main__' has no attribute {name!r}") from None

    def elsewhere(self) -> set[str]:
        """Names of the notebook that are not here."""
        return self._names.elsewhere() if self._open else set()

    def names(self) -> list[str]:
        """All names that the cell can look up, here or in the notebook."""
        return sorted({*self._namespace, *self.elsewhere()})

    def _find(self, name: str, frame: FrameType) -> Any:
        """The result of a look-up that Python did not find, in a frame whose builtins are the session's."""
        if name not in vars(builtins):
            if frame.f_globals is not self._namespace:  # `eval(text, {})` has its own names
                raise KeyError(name)
            return self._value(name)
        if name in SHOW_NAMESPACE and self._shows(name, frame):
            try:
                keys = keys_of_call(frame.f_code, frame.f_lasti)
            except LookupError:  # `vars(x)`, `map(dir, xs)`, and `show = globals`, whose caller is unknown
                keys = None if name in NO_ARGUMENTS else NO_KEYS
            else:
                if name == "dir":
                    return self.names
            if keys is None:
                self.fetch_all()
            else:
                self._fetch_or_stand_in(keys)
        return vars(builtins)[name]

    def _fetch_or_stand_in(self, names: Iterable[str]) -> None:
        self.fetch(names)
        self._names.stand_in(names)

    def _shows(self, name: str, frame: FrameType) -> bool:
        return (frame.f_globals if name == "globals" else frame.f_locals) is self._namespace

    def _value(self, name: str) -> Any:
        self.fetch((name,))
        if name not in self._namespace:
            self._names.explain(name)
        return self._namespace[name]


class Builtins(dict[str, Any]):
    """A namespace's `__builtins__`: the contents of the module, and a request for anything else."""

    def __init__(self, find: Callable[[str, FrameType], Any]) -> None:
        super().__init__()
        object.__setattr__(self, "_find", find)
        self.refresh()

    def __missing__(self, name: str) -> Any:
        return object.__getattribute__(self, "_find")(name, sys._getframe(1))

    def __getattr__(self, name: str) -> Any:
        """In a notebook `__builtins__` is the module, so its attributes work, too."""
        return getattr(builtins, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(builtins, name, value)

    def refresh(self) -> None:
        """Copies the module. No name is ever missing, because a thread of an earlier cell may be reading."""
        here = vars(builtins)
        for name in self.keys() - here.keys():
            del self[name]
        self.update((name, value) for name, value in here.items() if name not in SHOW_NAMESPACE)

    def follow(self, name: str) -> None:
        """Updates a name that was set or deleted in the module."""
        here = vars(builtins)
        if name not in here:
            self.pop(name, None)
        elif name not in SHOW_NAMESPACE:
            self[name] = here[name]


def builtins_here() -> Any:
    return vars(builtins)


# `exec` leaves it in the dictionary in which it runs code.
copyreg.pickle(Builtins, lambda _: (builtins_here, ()))


def mirror_builtins(copy: Builtins) -> None:
    """Changes to the module `builtins` take effect at once, as for `mock.patch("builtins.input")`."""

    class BuiltinsModule(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            copy.follow(name)

        def __delattr__(self, name: str) -> None:
            super().__delattr__(name)
            copy.follow(name)

    become(builtins, BuiltinsModule)


def watch_main(module: ModuleType, faults: NameFaults) -> None:
    """Requests names that are looked up as `__main__.name`, also in a library or during unpickling.

    The notebook's code, and libraries that look for names, find all of them in the module's dictionary.
    """
    namespace = vars(module)

    class MainModule(ModuleType):
        @property
        def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
            reader = sys._getframe(1).f_globals
            if reader is namespace or reader.get("__name__") in FIND_NAMES:
                faults.fetch_all()
            return namespace

        def __getattr__(self, name: str) -> Any:
            return faults.attribute(name)

        def __dir__(self) -> list[str]:
            return faults.names()

    become(module, MainModule)


def become(module: ModuleType, kind: type[ModuleType]) -> None:
    """Changes the module's class. It still pickles by name, like any module."""
    module.__class__ = kind
    copyreg.pickle(kind, lambda module: (importlib.import_module, (module.__name__,)))
