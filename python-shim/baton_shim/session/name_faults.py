"""Names of the notebook that a running cell looks up and was not given: in `eval`, in `exec`, through `__main__`.

Python asks a namespace and then its builtins. So the builtins of the session's namespace are a dictionary that asks
the notebook for what it lacks, and puts what comes into the namespace. `globals`, `locals`, `vars` and `dir` are left
out of that dictionary: who looks them up is about to see the namespace itself, and what is to be seen comes first.

Python looks up builtins and globals several times more slowly in functions that were made beside such a dictionary. So
it is there only while a cell runs that may look up names which only text shows.

**Invariant:** nobody is asked between cells, nor for a name that the notebook does not have.
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
# Between two tries an interrupt gets through.
TRY_SECONDS = 0.1


class NameFaults:
    def __init__(
        self,
        namespace: dict[str, Any],
        names: SessionNames,
        turn: threading.Lock,
        ask: Callable[[list[str]], None],
    ) -> None:
        """`ask` brings names while `turn` is held: one thread speaks to the notebook at a time."""
        self._namespace = namespace
        self._names = names
        self._turn = turn
        self._ask = ask
        self._asking: int | None = None
        self._open = False
        self._builtins = Builtins(self._find)
        mirror_builtins(self._builtins)

    def open(self, dynamic: bool) -> None:
        """The cell begins; a `dynamic` one may look up names that only text shows."""
        self._open = True
        if dynamic:
            self.watch_text()

    def watch_text(self) -> None:
        self._builtins.refresh()
        self._namespace["__builtins__"] = self._builtins

    def close(self) -> None:
        """The cell has ended; what a thread of it is being brought comes first."""
        with self._turn:
            self._open = False
        self._namespace["__builtins__"] = builtins

    def bring(self, names: Iterable[str]) -> None:
        """Those that the notebook has and the cell lacks."""
        wanted = self._names.missing.intersection(names)
        if not (wanted and self._open) or self._asking == threading.get_ident():
            return  # the last: what is being brought looks up a name itself
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

    def bring_all(self) -> None:
        """What cannot come is there as a stand-in that says why."""
        self._bring_or_stand_in(self._names.elsewhere())

    def attribute(self, name: str) -> Any:
        """Of the module `__main__`."""
        try:
            return self._value(name)
        except KeyError:
            raise AttributeError(f"module '__main__' has no attribute {name!r}") from None

    def elsewhere(self) -> set[str]:
        """Names of the notebook that are not here."""
        return self._names.elsewhere() if self._open else set()

    def names(self) -> list[str]:
        """All that the cell can look up, here or in the notebook."""
        return sorted({*self._namespace, *self.elsewhere()})

    def _find(self, name: str, frame: FrameType) -> Any:
        """What Python's look-up of a name came to, in a frame whose builtins are the session's."""
        if name not in vars(builtins):
            if frame.f_globals is not self._namespace:  # `eval(text, {})` means other names
                raise KeyError(name)
            return self._value(name)
        if name in SHOW_NAMESPACE and self._shows(name, frame):
            try:
                keys = keys_of_call(frame.f_code, frame.f_lasti)
            except LookupError:  # `vars(x)`, `map(dir, xs)`, and `show = globals`, of which nobody knows who calls it
                keys = None if name in NO_ARGUMENTS else NO_KEYS
            else:
                if name == "dir":
                    return self.names
            if keys is None:
                self.bring_all()
            else:
                self._bring_or_stand_in(keys)
        return vars(builtins)[name]

    def _bring_or_stand_in(self, names: Iterable[str]) -> None:
        self.bring(names)
        self._names.stand_in(names)

    def _shows(self, name: str, frame: FrameType) -> bool:
        return (frame.f_globals if name == "globals" else frame.f_locals) is self._namespace

    def _value(self, name: str) -> Any:
        self.bring((name,))
        if name not in self._namespace:
            self._names.explain(name)
        return self._namespace[name]


class Builtins(dict[str, Any]):
    """As a namespace's `__builtins__`: the module's content, and a question for what is not in it."""

    def __init__(self, find: Callable[[str, FrameType], Any]) -> None:
        super().__init__()
        object.__setattr__(self, "_find", find)
        self.refresh()

    def __missing__(self, name: str) -> Any:
        return object.__getattribute__(self, "_find")(name, sys._getframe(1))

    def __getattr__(self, name: str) -> Any:
        """`__builtins__` is the module in a notebook."""
        return getattr(builtins, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(builtins, name, value)

    def refresh(self) -> None:
        """A thread of an earlier cell may be reading, so nothing is ever missing for a moment."""
        here = vars(builtins)
        for name in self.keys() - here.keys():
            del self[name]
        self.update((name, value) for name, value in here.items() if name not in SHOW_NAMESPACE)

    def follow(self, name: str) -> None:
        """It was set or deleted in the module."""
        here = vars(builtins)
        if name not in here:
            self.pop(name, None)
        elif name not in SHOW_NAMESPACE:
            self[name] = here[name]


def builtins_here() -> Any:
    return vars(builtins)


# What code that `exec` runs in a dictionary leaves there.
copyreg.pickle(Builtins, lambda _: (builtins_here, ()))


def mirror_builtins(copy: Builtins) -> None:
    """What is set in the module `builtins` holds at once, as for `mock.patch("builtins.input")`."""

    class BuiltinsModule(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            copy.follow(name)

        def __delattr__(self, name: str) -> None:
            super().__delattr__(name)
            copy.follow(name)

    become(builtins, BuiltinsModule)


def watch_main(module: ModuleType, faults: NameFaults) -> None:
    """`__main__.name`, also in a library and when something pickled by its name is read."""

    class MainModule(ModuleType):
        def __getattr__(self, name: str) -> Any:
            return faults.attribute(name)

        def __dir__(self) -> list[str]:
            return faults.names()

    become(module, MainModule)


def become(module: ModuleType, kind: type[ModuleType]) -> None:
    """Pickled as every module: by its name."""
    module.__class__ = kind
    copyreg.pickle(kind, lambda module: (importlib.import_module, (module.__name__,)))
